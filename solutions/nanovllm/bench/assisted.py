"""transformers' own guesses: assisted generation and prompt lookup, beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, cast

import torch

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
        return [
            Row(
                kind, 1, f"HF {name}",
                tokens=alone[0].steps / own[0].steps,
                faster=median_ratio([run.cpu for run in alone], [run.cpu for run in own]),
                faster_wall=median_ratio([run.wall for run in alone], [run.wall for run in own]),
                seconds={NONE: [run.cpu for run in alone], name: [run.cpu for run in own]},
            )
            for name, own in runs.items()
        ]  # fmt: skip

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
