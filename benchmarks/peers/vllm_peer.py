"""vLLM as a contestant, run by the Python of its own environment.

`vllm_peer.py in-process | own-process | ngram GUESSES`; the last one guesses by prompt lookup.
"""

import os
import sys
from pathlib import Path
from typing import Any

from nanovllm.bench.loop import serve


class Vllm:
    """vLLM's offline `LLM.generate`, without a tokenizer: requests and answers are token ids."""

    def __init__(self, guesses: int = 0) -> None:
        lookup = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
        self.guessing = lookup | {"num_speculative_tokens": guesses} if guesses else None
        self.steps = 0

    def load(
        self, model: str, dtype: str, threads: int, max_model_len: int, max_num_seqs: int
    ) -> dict[str, Any]:
        import torch
        import vllm

        self.vllm = vllm
        self.llm = vllm.LLM(
            model,
            dtype=dtype,
            skip_tokenizer_init=True,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            seed=0,
            disable_log_stats=True,
            speculative_config=self.guessing,
        )
        self.step = self.llm.llm_engine.step
        self.llm.llm_engine.step = self._step
        preloaded = [Path(each).name for each in os.environ.get("LD_PRELOAD", "").split(os.pathsep)]
        return {
            "vllm": vllm.__version__, "torch": torch.__version__, "preloaded": " ".join(preloaded),
        }  # fmt: skip

    def settle(self) -> None:
        pass

    def _step(self) -> Any:
        self.steps += 1
        return self.step()

    def counts(self) -> dict[str, int]:
        return {"steps": self.steps}

    def run(self, jobs: list[dict[str, Any]]) -> list[list[int]]:
        params = [
            self.vllm.SamplingParams(
                temperature=0, max_tokens=job["max_tokens"], ignore_eos=True, detokenize=False
            )
            for job in jobs
        ]
        prompts = [{"prompt_token_ids": job["prompt"]} for job in jobs]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    how, guesses = sys.argv[1:]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "01"[how == "own-process"]
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; its default takes half the memory
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    serve(Vllm(int(guesses) if how == "ngram" else 0))
