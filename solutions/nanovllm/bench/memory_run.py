"""The same question put to the real engine: one model, one workload, slots against blocks."""

from statistics import mean

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Stepped
from nanovllm.batching.slot_store import SlotStore
from nanovllm.bench.memory import Usage, waits_for_room
from nanovllm.bench.stages import BLOCK_SIZE, Room, greedy
from nanovllm.bench.workload import Workload
from nanovllm.generation.events import Finished
from nanovllm.generation.request import weight_of
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore


def measure(model: Transformer, workload: Workload, room: Room) -> dict[str, Usage]:
    """Answer the workload twice within the same memory. Raises ValueError if answers differ."""
    dtype = weight_of(model).dtype
    stores = {
        "contiguous": SlotStore(model.config, room.seats, room.max_model_len, dtype),
        "paged": PagedStore(
            model.config, room.blocks, BLOCK_SIZE, dtype, enable_prefix_caching=False
        ),
    }
    found, answers = {}, []
    for name, store in stores.items():
        config = EngineConfig(
            max_num_seqs=room.seats if name == "contiguous" else 64,
            max_model_len=room.max_model_len,
        )
        engine = Engine(model, config, store=store)
        for job in workload.jobs:
            engine.add_request(list(job.prompt), greedy(job))
        found[name], texts = _run(engine)
        answers.append(texts)
    if answers[0] != answers[1]:
        raise ValueError("slots and blocks gave different answers")
    return found


def _run(engine: Engine) -> tuple[Usage, dict[int, tuple[int, ...]]]:
    """Run the engine dry, and sample its store after each step with requests waiting."""
    texts, full, steps = {}, [], 0
    for event in engine.run():
        if isinstance(event, Finished):
            texts[event.request_id] = event.completion.token_ids
        elif isinstance(event, Stepped):
            steps += 1
            if waits_for_room(event, engine.config.max_num_batched_tokens):
                full.append((event.running, *_places(engine)))
    total = engine.store.total_tokens
    usage = Usage(
        sequences=mean(running for running, _, _ in full),
        internal_waste=mean(1 - stored / held for _, stored, held in full),
        external_waste=mean(1 - held / total for _, _, held in full),
        stored=mean(stored / total for _, stored, _ in full),
        steps=steps,
    )
    return usage, texts


def _places(engine: Engine) -> tuple[int, int]:
    """Places that hold a token, and places that belong to a request."""
    store, requests = engine.store, engine.scheduler.running
    held = {block_id for request in requests for block_id in store.block_ids(request)}
    return store.total_tokens - store.free_tokens, max(1, len(held) * store.block_size)
