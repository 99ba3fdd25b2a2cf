"""Peers' own guesses beside ours: transformers', vLLM's prompt lookup, llama.cpp's draft model."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, cast

import torch

from nanovllm.bench.contestants import Ready
from nanovllm.bench.guessing_rows import NONE, Ids, Row, Run
from nanovllm.bench.process import ROOT, ContestantError
from nanovllm.bench.stats import median_ratio


class Assisted:
    """transformers (HF), one prompt at a time: alone, with a draft, with prompt lookup."""

    def __init__(self, target: Path, draft: Path, guesses: int, max_tokens: int) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        self.model, assistant = (
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            for folder in (target, draft)
        )
        settings = assistant.generation_config
        settings.num_assistant_tokens, settings.assistant_confidence_threshold = guesses, 0
        settings.num_assistant_tokens_schedule = "constant"
        lookup = {"prompt_lookup_num_tokens": guesses, "max_matching_ngram_size": 3}
        self.ways = {NONE: {}, "draft": {"assistant_model": assistant}, "ngram": lookup}
        self.max_tokens = max_tokens

    def rows(self, kind: str, asked: Sequence[Ids], rounds: int) -> list[Row]:
        """In turns, as `Bench.rows`."""
        runs: dict[str, list[Run]] = {}
        for _ in range(rounds):
            for name in self.ways:
                runs.setdefault(name, []).append(self._run(name, asked))
        alone = runs.pop(NONE)
        return [_row(kind, 1, f"HF {name}", alone, own) for name, own in runs.items()]

    def _run(self, name: str, asked: Sequence[Ids]) -> Run:
        forwards: list[None] = []
        hook = self.model.register_forward_hook(lambda *_: forwards.append(None))
        cpu, wall, texts = process_time(), perf_counter(), []
        for ids in asked:
            out = cast(Any, self.model).generate(
                torch.tensor([ids]), do_sample=False, max_new_tokens=self.max_tokens,
                **self.ways[name],
            )  # fmt: skip
            texts.append(out[0, len(ids) :].tolist())
        hook.remove()
        return Run(texts, len(forwards), process_time() - cpu, perf_counter() - wall)


class Lookup:
    """vLLM in processes of its own: alone, and with prompt lookup."""

    def __init__(self, ready: Mapping[str, Ready]) -> None:
        """ready: the contestants `vllm` and `vllm-ngram`."""
        self.ways = {NONE: ready["vllm"], "ngram": ready["vllm-ngram"]}

    def row(
        self, kind: str, asked: Sequence[Ids], texts: Sequence[Ids], rounds: int, batch: int
    ) -> Row:
        """In turns, `batch` prompts at once, each answered by as many tokens as its text has."""
        jobs = [
            {"prompt": ids, "max_tokens": len(text)} for ids, text in zip(asked, texts, strict=True)
        ]
        parts = [jobs[i : i + batch] for i in range(0, len(jobs), batch)]
        runs: dict[str, list[Run]] = {name: [] for name in self.ways}
        for number in range(rounds + 1):
            for name, ready in self.ways.items():
                run = self._run(ready, parts)
                if number:  # the first one warms up
                    runs[name].append(run)
        return _row(kind, batch, "vLLM ngram", runs[NONE], runs["ngram"])

    def _run(self, ready: Ready, parts: Sequence[list[dict[str, Any]]]) -> Run:
        before = ready.process.ask("memory")["steps"]
        found = [ready.process.ask("run", jobs=part) for part in parts]
        steps = ready.process.ask("memory")["steps"] - before
        cpu, wall = (sum(one[k] for one in found) for k in ("cpu_seconds", "seconds"))
        return Run([ids for one in found for ids in one["token_ids"]], steps, cpu, wall)


_TOLD = r"decoded +(\d+) tokens in +([\d.]+) seconds.*n_accept +=\D+(\d+)"


class Example:
    """llama.cpp's example `llama-speculative-simple`: a process for each answer, timed by itself.

    It always guesses: alone is lookup of so many tokens that nothing is found.
    """

    def __init__(
        self, binary: str, python: str, folders: Sequence[Path], guesses: int, tokens: int,
        threads: int,
    ) -> None:  # fmt: skip
        """python: of an environment that writes folders, of the target and the draft, as GGUF."""
        target, draft = (self._weights(python, folder) for folder in folders)
        self.command = [binary, "-m", target, "-c", "512", "--temp", "0", "-n", str(tokens)]
        self.command += ["-t", str(threads), "-td", str(threads)]
        self.command += ["--spec-draft-n-max", str(guesses)]
        self.ways = {
            NONE: ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "512"],
            "draft": ["--spec-type", "draft-simple", "-md", draft, "--spec-draft-p-min", "0"],
        }

    def _weights(self, python: str, folder: Path) -> str:
        adapter = ROOT / "benchmarks" / "peers" / "llama_peer.py"
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [python, str(adapter), "make", str(folder), "f32"],
            check=True, capture_output=True, text=True, env=environment,
        )  # fmt: skip
        return done.stdout.split()[-1]

    def _answer(self, options: Sequence[str]) -> tuple[str, ...]:
        """Tokens, seconds, and guesses that stood. Sometimes it ends before its log is written."""
        told = ""
        for _ in range(5):
            done = subprocess.run(
                [*self.command, *options], check=True, capture_output=True, text=True
            )
            told = done.stderr
            if found := re.search(_TOLD, told, re.DOTALL):
                return found.groups()
        raise ContestantError(f"llama.cpp's example does not tell its times: {told[-500:]}")

    def row(self, kind: str, prompts: Sequence[str], rounds: int) -> Row:
        """In turns, as `Bench.rows`; in place of processor time, seconds that it tells, a token."""
        runs: dict[str, list[Run]] = {name: [] for name in self.ways}
        for _ in range(rounds):
            for name in self.ways:
                runs[name].append(self._run(name, prompts))
        return _row(kind, 1, "llama.cpp draft", runs[NONE], runs["draft"])

    def _run(self, name: str, prompts: Sequence[str]) -> Run:
        tokens, forwards, seconds = 0, 0, 0.0
        for prompt in prompts:
            count, took, accepted = self._answer([*self.ways[name], "-p", prompt])
            tokens, seconds = tokens + int(count), seconds + float(took)
            forwards += int(count) - int(accepted)
        # it answers with a few tokens too many
        per_thousand = round(1000 * forwards / tokens)
        return Run([], per_thousand, seconds / tokens, seconds / tokens)


def _row(kind: str, batch: int, way: str, alone: Sequence[Run], own: Sequence[Run]) -> Row:
    return Row(
        kind, batch, way,
        tokens=alone[0].steps / own[0].steps,
        faster=median_ratio([run.cpu for run in alone], [run.cpu for run in own]),
        faster_wall=median_ratio([run.wall for run in alone], [run.wall for run in own]),
        seconds={NONE: [run.cpu for run in alone], way: [run.cpu for run in own]},
    )  # fmt: skip
