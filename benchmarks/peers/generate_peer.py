"""`LLM.generate`, text and all: what a server of the same engine is held to."""

from typing import Any

from nanovllm.bench.loop import serve


class Generate:
    """The whole `LLM`, where nanovllm.bench.ours is the engine alone."""

    def load(
        self, model: str, dtype: str, threads: int, max_model_len: int, max_num_seqs: int
    ) -> dict[str, Any]:
        import torch

        from nanovllm import LLM

        torch.set_num_threads(threads)
        self.llm = LLM(model, dtype=dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
        return {"torch": torch.__version__}

    def settle(self) -> None:
        from nanovllm.bench.stages import settle

        settle(self.llm.runner.engine)

    def run(self, jobs: list[dict[str, Any]]) -> list[list[int]]:
        from nanovllm import SamplingParams

        params = [
            SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
            for job in jobs
        ]
        outputs = self.llm.generate([job["prompt"] for job in jobs], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    serve(Generate())
