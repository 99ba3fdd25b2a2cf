"""This engine as a contestant: `python -m nanovllm.bench.ours '{"enforce_eager": true}'`."""

import json
import sys
import time
from typing import Any

from nanovllm.bench.acceptance import Acceptance
from nanovllm.bench.loop import serve


class Ours:
    """The engine that `LLM` would use with these options, without text: all are token ids."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.acceptance = Acceptance()

    def load(
        self, model: str, dtype: str, threads: int, max_model_len: int, max_num_seqs: int
    ) -> dict[str, Any]:
        begun = time.perf_counter()
        import torch

        seconds = time.perf_counter() - begun
        import nanovllm
        from nanovllm.llm.engine_options import EngineOptions
        from nanovllm.llm.ranks import choose_level
        from nanovllm.llm.ranks import load as load_model
        from nanovllm.llm.read_options import read_dtype
        from nanovllm.llm.runner import Runner
        from nanovllm.model.loader import resolve_folder

        torch.set_num_threads(threads)
        folder = resolve_folder(model)
        options = EngineOptions(max_num_seqs=max_num_seqs, **self.options)
        level = choose_level(options)
        cpu = torch.device("cpu")
        weights = load_model(folder, read_dtype(dtype, folder), cpu, options)
        rung = level.make(weights, None, max_model_len, options)
        self.runner = Runner(rung)
        self.runner.on_event = self.acceptance
        self.next_id = 0
        return {
            "nanovllm": nanovllm.__version__, "torch": torch.__version__,
            "engine": level.engine_name, "step": rung.step, "torch_import_seconds": seconds,
        }  # fmt: skip

    def settle(self) -> None:
        """The first steps are plain, while the compiled one is made."""
        from nanovllm.bench.stages import settle

        settle(self.runner.engine)

    def counts(self) -> dict[str, Any]:
        length = self.acceptance.mean_length
        return {} if length is None else {"mean_acceptance_length": length}

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
    serve(Ours(**json.loads(sys.argv[1])))
