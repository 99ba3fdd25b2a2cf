"""A prefill engine and a decode engine in one process: what is sent, and what it saves (given)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Stepped
from nanovllm.cluster.connected_store import ConnectedStore
from nanovllm.cluster.header import fingerprint
from nanovllm.cluster.sides import Decodes
from nanovllm.cluster.transfer_params import TransferParams
from nanovllm.cluster.wire import unpack
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_model
from nanovllm.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Answer:
    """A text, the tokens that were computed for it where it ended, and bytes that came before."""

    text: str
    computed: int
    nbytes: int = 0


def connected_engine(folder: Path, num_blocks: int, block_size: int, parts: int = 8) -> Engine:
    """An engine on a ConnectedStore; at most `parts` requests at a time."""
    model = load_model(folder)
    store = ConnectedStore(model.config, num_blocks, block_size, model=fingerprint(model))
    config = EngineConfig(max_num_seqs=parts)
    return Engine(model, config, tokenizer=Tokenizer.from_pretrained(folder), store=store)


def run_alone(engine: Engine, prompt: list[int], params: SamplingParams, nbytes: int = 0) -> Answer:
    """One request from its start to its end."""
    engine.add_request(prompt, params)
    text, computed = "", 0
    while engine.has_unfinished:
        for event in engine.step():
            if isinstance(event, Stepped):
                computed += sum(chunk.length for chunk in event.chunks)
            elif isinstance(event, Finished):
                text = event.completion.text
    return Answer(text, computed, nbytes)


def hand_over(prefill: Engine, decode: Engine, prompt: list[int], params: SamplingParams) -> Answer:
    """The answer of the decode engine to a prompt whose K and V the prefill engine computed."""
    name = uuid.uuid4().hex
    first = replace(params, max_tokens=1, min_tokens=0)
    run_alone(prefill, prompt, TransferParams.of(first, Decodes(name)))
    here, there = cast(ConnectedStore, prefill.store), cast(ConnectedStore, decode.store)
    data = here.fetch(name) or b""
    received = unpack(data, there.header)
    here.parking.acknowledge(name)
    return run_alone(decode, prompt, TransferParams.of(params, received), len(data))
