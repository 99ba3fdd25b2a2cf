"""This engine as a contestant: `python -m nanovllm.bench.ours [plain]`."""

import sys
from typing import Any

from nanovllm.bench.loop import serve


class Ours:
    """The engine that `LLM` would use, without text: requests and answers are token ids."""

    def __init__(self, plain: bool) -> None:
        self.plain = plain

    def load(
        self, model: str, dtype: str, threads: int, max_model_len: int, max_num_seqs: int
    ) -> dict[str, Any]:
        import torch

        import nanovllm
        from nanovllm.llm.engine_levels import choose
        from nanovllm.llm.engine_options import EngineOptions
        from nanovllm.llm.read_options import read_dtype
        from nanovllm.llm.runner import Runner
        from nanovllm.model.loader import load_model, resolve_folder

        torch.set_num_threads(threads)
        folder = resolve_folder(model)
        weights = load_model(folder, read_dtype(dtype, folder))
        plain = {"enforce_eager": True} if self.plain else {}  # else as the environment says
        options = EngineOptions(max_num_seqs=max_num_seqs, **plain)
        level = choose()
        rung = level.make(weights, None, max_model_len, options)
        self.runner = Runner(rung)
        self.next_id = 0
        return {
            "nanovllm": nanovllm.__version__, "torch": torch.__version__,
            "engine": level.engine_name, "step": rung.step,
        }  # fmt: skip

    def settle(self) -> None:
        """The first steps are plain, while the compiled one is made."""
        from nanovllm.bench.stages import settle

        settle(self.runner.engine)

    def run(self, jobs: list[dict[str, Any]]) -> list[list[int]]:
        from nanovllm.generation.events import Finished
        from nanovllm.generation.params import SamplingParams
        from nanovllm.llm.runner import Call

        call, ids = Call(), range(self.next_id, self.next_id + len(jobs))
        self.next_id += len(jobs)
        for request, job in zip(ids, jobs, strict=True):
            params = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
            self.runner.submit(call, request, job["prompt"], params, seed=0)
        events = [e for e in self.runner.events(call) if isinstance(e, Finished)]
        done = {event.request_id: event.completion.token_ids for event in events}
        return [list(done[request]) for request in ids]


if __name__ == "__main__":
    serve(Ours(plain="plain" in sys.argv[1:]))
