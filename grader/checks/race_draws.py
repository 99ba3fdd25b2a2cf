"""What lab 14's race asks of an engine: models and requests drawn from a seed, and what agrees."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Task = dict[str, Any]
FAMILIES: dict[str, Task] = {
    "qwen3": {"qk_norm": True},
    "llama": {"mlp_bias": True},
    "qwen2": {"qkv_bias": True, "tie_embeddings": True},
    "mistral": {"windows": 6},
}
GREEDY = {"temperature": 0.0, "ignore_eos": True}
KINDS: tuple[Task, ...] = (
    GREEDY,
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "n": 2},
    {"temperature": 0.0, "stop_token_ids": [5, 9, 20, 31]},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"temperature": 0.0, "min_tokens": 3, "logit_bias": {"7": 4.0}},
)
VOCABULARY, MANY, GROUPS = 1024, 64, 8
SHAPE = {"family": "qwen3", "vocab_size": VOCABULARY, "hidden_size": 128, "num_layers": 4,
         "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "intermediate_size": 256,
         "max_position": 128, "qk_norm": True}  # fmt: skip


def gate(seed: str) -> list[tuple[Task, Task]]:
    """A model to load and requests to run, of each family: with enough blocks, and with few."""
    draw, found = random.Random(f"gate {seed}"), []
    for family, special in FAMILIES.items():
        for fewest in (60, 14):
            heads, groups, layers = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 3)
            shape = {"family": family, "vocab_size": 50, "hidden_size": 4 * draw.randint(2, 6),
                     "num_layers": layers, "num_heads": heads * groups, "num_kv_heads": heads,
                     "head_dim": 2 * draw.randint(2, 5), "intermediate_size": draw.randint(5, 30),
                     "max_position": 128, **special}  # fmt: skip
            if "windows" in special:
                shape["windows"] = [draw.randint(4, 9)] * layers
            kinds = KINDS if fewest == 60 else KINDS[:2]
            engine = {"max_num_seqs": draw.randint(2, 6),
                      "max_num_batched_tokens": draw.randint(8, 30)}  # fmt: skip
            start = [draw.randrange(3, 50) for _ in range(9)]
            requests = []
            for number in range(8):
                own = [draw.randrange(3, 50) for _ in range(draw.randint(1, 14))]
                params = {**kinds[number % len(kinds)], "max_tokens": draw.randint(3, 14)}
                requests.append({"at": draw.randrange(8), "params": params,
                                 "ids": start[: draw.choice([0, 4, 8])] + own})  # fmt: skip
            run = {"kind": "race", "do": "run", "check": True, "requests": requests}
            found.append((_load(shape, engine, fewest, draw), run))
    return found


def timed(seed: str) -> Task:
    """The model and engine of the timed rounds: the shape is known, the weights are not."""
    engine = {"max_num_seqs": MANY, "max_num_batched_tokens": 2048}
    return _load(SHAPE, engine, 800, random.Random(f"weights {seed}"))


def many(seed: str, number: int) -> Task:
    """64 requests at once: eight prompts begin alike, and no token is that of another round."""
    draw = random.Random(f"many {seed} {number}")
    starts = [_ids(draw, 16) for _ in range(GROUPS)]
    prompts = [starts[i % GROUPS] + _ids(draw, draw.randint(2, 8)) for i in range(MANY)]
    return _run(prompts, 4)


def one(seed: str, number: int) -> Task:
    """One request alone."""
    return _run([_ids(random.Random(f"one {seed} {number}"), 12)], 14)


def disagreement(load: Task, run: Task, own: Any, plain: Task, near: Callable[[Task], bool]) -> str:
    """The first text that is not the plain engine's, and what is wrong with it; "" if none is.

    near: whether a text of greedy tokens is as good, logits being equal but for rounding.
    """
    for name, text in plain.items():
        mine = own.get(name, "none") if isinstance(own, dict) else "none"
        if mine == text:
            continue
        number, request = name.partition(".")[0], run["requests"][int(name.partition(".")[0])]
        if not isinstance(mine, list) or not isinstance(text, list) or len(mine) != len(text):
            return f"request {number}: it has not as many tokens as the plain engine's text"
        greedy = {**request["params"], "max_tokens": 0} == {**GREEDY, "max_tokens": 0}
        if not greedy or not near({**load, "do": "ties", "ids": request["ids"], "text": mine}):
            first = next(i for i, token in enumerate(text) if mine[i] != token)
            what = f"token {first + 1} of {len(text)} is another than the plain engine's"
            return f"request {number}: {what}"
    return ""


def _load(shape: Task, engine: Task, blocks: int, draw: random.Random) -> Task:
    return {"kind": "race", "do": "load", "model": shape, "weights": draw.randrange(1 << 30),
            "engine": engine, "blocks": [blocks, 4]}  # fmt: skip


def _run(prompts: list[list[int]], tokens: int) -> Task:
    params = {**GREEDY, "max_tokens": tokens}
    requests = [{"at": 0, "params": params, "ids": ids} for ids in prompts]
    return {"kind": "race", "do": "run", "requests": requests}


def _ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, VOCABULARY) for _ in range(count)]
