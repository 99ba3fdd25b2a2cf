"""Hugging Face transformers: `transformers_peer.py one | static | continuous | assisted`."""

import sys
from typing import Any

from nanovllm.bench.loop import serve

PAGE = 16  # tokens a page


class Transformers:
    """`generate` one request at a time, or in padded batches; or `generate_batch`.

    Assisted: one at a time, guesses by the bundled draft where it fits, else by prompt lookup.
    """

    def __init__(self, mode: str, static_rows: int = 32) -> None:
        self.served = 0
        self.mode, self.rows = mode, static_rows if mode == "static" else 1
        self.assistance: dict[str, Any] = {}

    def load(
        self, model: str, dtype: str, threads: int, max_model_len: int, max_num_seqs: int
    ) -> dict[str, Any]:
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype)
        ).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0
        if self.mode == "assisted":
            self.assistance = self._assistance()
        if self.mode == "continuous":
            self.manager = self._manager(max_num_seqs, max_num_seqs * max_model_len)
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    def settle(self) -> None:
        pass

    def run(self, jobs: list[dict[str, Any]]) -> list[list[int]]:
        if self.mode == "continuous":
            return self._continuous(jobs)
        # Rows of similar length share a batch, which pads least.
        order = sorted(range(len(jobs)), key=lambda i: len(jobs[i]["prompt"]))
        found: dict[int, list[int]] = {}
        for start in range(0, len(order), self.rows):
            rows = order[start : start + self.rows]
            found |= zip(rows, self._batch([jobs[i] for i in rows]), strict=True)
        return [found[i] for i in range(len(jobs))]

    def _batch(self, jobs: list[dict[str, Any]]) -> list[list[int]]:
        import torch

        width = max(len(job["prompt"]) for job in jobs)
        ids = torch.tensor([[0] * (width - len(j["prompt"])) + j["prompt"] for j in jobs])
        mask = torch.tensor(
            [[0] * (width - len(j["prompt"])) + [1] * len(j["prompt"]) for j in jobs]
        )
        longest = max(job["max_tokens"] for job in jobs)
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=mask, max_new_tokens=longest, do_sample=False,
                **self.assistance,
            )  # fmt: skip
        return [
            row[width : width + job["max_tokens"]].tolist()
            for row, job in zip(out, jobs, strict=True)
        ]

    def _assistance(self) -> dict[str, Any]:
        """Four guesses a step, as our engine makes them."""
        import transformers

        from nanovllm.llm.read_options import BUNDLED

        draft = transformers.AutoModelForCausalLM.from_pretrained(
            BUNDLED.parent / "draft", dtype=self.model.dtype
        ).eval()
        if draft.config.vocab_size != self.model.config.vocab_size:
            return {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 3}
        how = draft.generation_config
        how.num_assistant_tokens, how.num_assistant_tokens_schedule = 4, "constant"
        how.assistant_confidence_threshold, how.eos_token_id = 0, None
        return {"assistant_model": draft}

    def _manager(self, max_num_seqs: int, kv_tokens: int) -> Any:
        """What runs behind `generate_batch`, which itself has one output length for all.

        By default it would fill nearly all memory with its cache.
        """
        import transformers

        sizes = transformers.ContinuousBatchingConfig(
            num_blocks=kv_tokens // PAGE,
            page_size=PAGE,
            max_batch_tokens=512,
            max_requests_per_batch=max_num_seqs,
            allow_block_sharing=False,
        )
        plain = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        manager = self.model.init_continuous_batching(plain, sizes)
        manager.start()
        return manager

    def _continuous(self, jobs: list[dict[str, Any]]) -> list[list[int]]:
        self.served += 1  # a request id is used once
        for i, job in enumerate(jobs):
            self.manager.add_request(
                job["prompt"], f"{self.served}.{i}", max_new_tokens=job["max_tokens"]
            )
        found: dict[str, list[int]] = {}
        while len(found) < len(jobs):
            result = self.manager.get_result(timeout=60)
            if result is None:
                raise RuntimeError("generate_batch gave nothing for 60 s")
            if result.is_finished():
                found[result.request_id] = list(result.generated_tokens)
        return [found[f"{self.served}.{i}"] for i in range(len(jobs))]


if __name__ == "__main__":
    serve(Transformers(sys.argv[1]))
