"""Peers' own guesses beside ours: transformers' draft and prompt lookup, vLLM's prompt lookup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, cast

import torch

from nanovllm.bench.contestants import Ready
from nanovllm.bench.guessing_rows import NONE, Ids, Row, Run
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


def _row(kind: str, batch: int, way: str, alone: Sequence[Run], own: Sequence[Run]) -> Row:
    return Row(
        kind, batch, way,
        tokens=alone[0].steps / own[0].steps,
        faster=median_ratio([run.cpu for run in alone], [run.cpu for run in own]),
        faster_wall=median_ratio([run.wall for run in alone], [run.wall for run in own]),
        seconds={NONE: [run.cpu for run in alone], way: [run.cpu for run in own]},
    )  # fmt: skip
