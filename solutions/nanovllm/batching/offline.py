"""Many prompts at once through the engine: lab 03's `generate_static`, without the waiting."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import EngineEvent, Failed, Stepped
from nanovllm.batching.store import KVStore
from nanovllm.generation.events import Completion, Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sampling import Sampler, sample
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class ContinuousResult:
    """Completions of each prompt, in the order of the prompts; failed samples; what it cost."""

    completions: list[list[Completion]]
    failures: list[Failed]
    steps: int
    tokens_computed: int


def generate_continuous(
    model: Transformer,
    prompts: Seq[Seq[int]],
    params: SamplingParams | Seq[SamplingParams],
    config: EngineConfig | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    seeds: Seq[int | None] | None = None,
    store: KVStore | None = None,
    sampler: Sampler = sample,
    clock: Callable[[], float] = time.perf_counter,
    on_event: Callable[[EngineEvent], None] | None = None,
) -> ContinuousResult:
    """Answer many prompts by continuous batching.

    params: one for all, or one a prompt. seeds: one a prompt, used where params.seed is None.
    on_event sees every event as it happens (request_id is the prompt's place in `prompts`).
    Every request is checked before the first is computed; raises RequestError.
    """
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    if len(each) != len(prompts):
        raise ValueError(f"There are {len(prompts)} prompts, but params for {len(each)}.")
    engine = Engine(model, config, tokenizer=tokenizer, store=store, sampler=sampler, clock=clock)
    for i, prompt in enumerate(prompts):
        seed = seeds[i] if seeds is not None else None
        engine.add_request(prompt, each[i], seed=seed, request_id=i)
    completions: list[list[Completion]] = [[] for _ in prompts]
    failures: list[Failed] = []
    steps = tokens = 0
    for event in engine.run():
        if isinstance(event, Finished):
            completions[event.request_id].append(event.completion)
        elif isinstance(event, Failed):
            failures.append(event)
        elif isinstance(event, Stepped):
            steps += 1
            tokens += sum(chunk.length for chunk in event.chunks)
        if on_event is not None:
            on_event(event)
    for samples in completions:
        samples.sort(key=lambda completion: completion.index)
    return ContinuousResult(completions, failures, steps, tokens)
