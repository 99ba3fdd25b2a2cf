"""Each lab's way to answer the same requests, from recomputing everything to the fast path."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from nanovllm.bench.workload import Arrivals, Job, Workload
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.read_options import BUNDLED, OptionError
from nanovllm.model.transformer import Transformer

if TYPE_CHECKING:
    from nanovllm.batching.engine import Engine
    from nanovllm.generation.params import SamplingParams

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Room:
    """The memory that every stage gets for K and V: so many requests of the greatest length."""

    seats: int
    max_model_len: int

    @property
    def blocks(self) -> int:
        """The same memory in blocks."""
        return self.seats * self.max_model_len // BLOCK_SIZE

    @property
    def options(self) -> EngineOptions:
        """An engine with this memory in blocks."""
        return EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks_override=self.blocks)


Answers = list[list[int]]
Answer = Callable[[Workload], Answers]
Stage = Callable[[Transformer, Room], Answer]  # what it sets up is not timed


def recompute(model: Transformer, room: Room) -> Answer:
    """No cache: for every token the model reads everything again."""
    from nanovllm.model.attend import RecomputeAttend

    attend = RecomputeAttend(model.config)

    @torch.inference_mode()
    def answer(workload: Workload) -> Answers:
        answers, arrivals = [], Arrivals(workload)
        while arrivals:
            [(_, job)] = arrivals.wait(most=1)
            ids = list(job.prompt)
            for _ in range(job.max_tokens):
                hidden = model(torch.tensor(ids), torch.arange(len(ids)), attend)
                ids.append(int(model.logits(hidden[-1:]).argmax()))
            answers.append(ids[len(job.prompt) :])
        return answers

    return answer


def cached(model: Transformer, room: Room) -> Answer:
    """One request at a time, with a KV cache."""
    from nanovllm.generation.events import Finished
    from nanovllm.generation.loop import generate

    def answer(workload: Workload) -> Answers:
        answers, arrivals = [], Arrivals(workload)
        while arrivals:
            [(_, job)] = arrivals.wait(most=1)
            for event in generate(model, list(job.prompt), greedy(job)):
                if isinstance(event, Finished):
                    answers.append(list(event.completion.token_ids))
        return answers

    return answer


def static(model: Transformer, room: Room) -> Answer:
    """Batches of those that have come, which wait for their slowest request."""
    from nanovllm.generation.static_batch import generate_static

    def answer(workload: Workload) -> Answers:
        answers, arrivals = [], Arrivals(workload)
        while arrivals:
            jobs = [job for _, job in arrivals.wait(most=room.seats)]
            found = generate_static(model, *_asked(jobs), max_num_seqs=room.seats)
            answers += [list(samples[0].token_ids) for samples in found.completions]
        return answers

    return answer


def continuous(model: Transformer, room: Room) -> Answer:
    """Requests join and leave at every step; each has a slot of the greatest length."""
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine

    config = EngineConfig(max_num_seqs=room.seats, max_model_len=room.max_model_len)
    return _drain(Engine(model, config))


def paged(model: Transformer, room: Room) -> Answer:
    """The same memory in blocks: more requests fit, and those that begin alike share."""
    from nanovllm.batching.engine import Engine
    from nanovllm.llm.paged_engines import make_store

    store = make_store(model, room.max_model_len, room.options)
    return _drain(Engine(model, room.options.config(room.max_model_len), store=store))


def kernels(model: Transformer, room: Room) -> Answer:
    """The paged engine on a GPU, its attention by lab 06's kernels."""
    from copy import deepcopy

    from nanovllm.batching.engine import Engine
    from nanovllm.llm.paged_engines import make_store

    if not torch.cuda.is_available():
        raise OptionError("not here: there is no GPU")
    model = deepcopy(model).to("cuda")
    store = make_store(model, room.max_model_len, room.options)
    return _drain(Engine(model, room.options.config(room.max_model_len), store=store))


def fast(model: Transformer, room: Room) -> Answer:
    """The paged engine with a step that is compiled for this machine."""
    from nanovllm.llm.paged_engines import make_engine, why_not_fast

    reason = why_not_fast(model, room.options)
    if reason is not None:
        raise OptionError(f"not here: {reason}")
    engine = make_engine(model, None, room.max_model_len, room.options)
    if not settle(engine):
        raise OptionError("not here: the compiled step could not be made")
    return _drain(engine)


def speculative(model: Transformer, room: Room) -> Answer:
    """The best engine that is here, with guesses: of the bundled draft model, if it fits, too."""
    from nanovllm.llm.paged_engines import make_engine

    lookup: dict[str, Any] = {"method": "ngram", "adaptive": True}
    both = lookup | {"method": "ngram_then_draft", "model": str(BUNDLED.parent / "draft")}

    def engine_with(guesses: dict[str, Any]) -> "Engine":
        options = replace(room.options, speculative_config=guesses)
        return make_engine(model, None, room.max_model_len, options)

    try:
        engine = engine_with(both)
    except OptionError:  # a draft for another model
        engine = engine_with(lookup)
    settle(engine)
    return _drain(engine)


def settle(engine: "Engine") -> bool:
    """Wait until an engine that begins plain has its compiled step; whether it has one."""
    wait = getattr(engine, "wait", None)
    return wait is not None and wait()


STAGES: dict[str, tuple[str, str, Stage]] = {  # name: lab, its package, the stage
    "recompute": ("lab02", "model", recompute),
    "KV cache": ("lab03", "generation", cached),
    "static batches": ("lab03", "generation", static),
    "continuous": ("lab04", "batching", continuous),
    "paged": ("lab05", "paging", paged),
    "kernels": ("lab06", "kernels", kernels),
    "compiled": ("given", "model", fast),
    "speculative": ("lab08", "speculative", speculative),
}


def _drain(engine: "Engine") -> Answer:
    """Give an engine the requests of a workload as they come; step it until all is answered."""
    from nanovllm.generation.events import Finished

    def answer(workload: Workload) -> Answers:
        ends: list[Finished] = []
        arrivals = Arrivals(workload)
        while arrivals or engine.has_unfinished:
            for place, job in arrivals.due() if engine.has_unfinished else arrivals.wait():
                engine.add_request(list(job.prompt), greedy(job), request_id=place)
            ends += [event for event in engine.step() if isinstance(event, Finished)]
        found = {event.request_id: list(event.completion.token_ids) for event in ends}
        return [found[place] for place in range(len(workload.jobs))]

    return answer


def greedy(job: Job) -> "SamplingParams":
    """The job's parameters: greedy, and no end of sequence."""
    from nanovllm.generation.params import SamplingParams

    return SamplingParams(temperature=0, max_tokens=job.max_tokens, ignore_eos=True)


def _asked(jobs: Sequence[Job]) -> tuple[list[list[int]], list]:
    return [list(job.prompt) for job in jobs], [greedy(job) for job in jobs]
