"""Questions to guess at before lab 11 is written; your own code answers them."""

from __future__ import annotations

from grader.student.predict import Question


def kib_on_the_wire() -> float:
    import torch

    from nanovllm.cluster.header import Header
    from nanovllm.cluster.wire import pack
    from nanovllm.model.config import ModelConfig
    from nanovllm.paging.cache import PagedCache

    config = ModelConfig("qwen3", 2048, 256, 4, 8, 4, 32, 768, 1024, qk_norm=True)
    cache = PagedCache(config, 63, 16, torch.float32)
    return len(pack(Header.of(cache, "target"), cache, range(63), 1000)) // 1024


def tokens_to_load() -> float:
    from nanovllm.cluster.connected_store import external_tokens

    return external_tokens(received=150, num_tokens=150, local=48)


def longest_gap() -> float:
    from itertools import pairwise

    from nanovllm.batching.simulator import StepCost
    from nanovllm.cluster.replay import Job, Limits, Progress, replay
    from nanovllm.cluster.strategies import prefill_first

    jobs = [Job(0.0, 10, 100)] * 4 + [Job(0.1, 1000, 10)]
    done = [Progress(number, job, job.arrival) for number, job in enumerate(jobs)]
    replay(done, prefill_first, StepCost(), Limits())
    times = done[0].times
    return 1000 * max(after - before for before, after in pairwise(times))


def keys_that_move() -> float:
    from nanovllm.cluster.block_index import BlockIndex
    from nanovllm.cluster.routing import make_policy
    from nanovllm.cluster.routing_interface import Query, ReplicaLoad

    policy = make_policy("rendezvous", BlockIndex())
    five = [ReplicaLoad(f"replica-{number}") for number in range(5)]
    queries = [Query(f"user-{number}") for number in range(1000)]
    return sum(policy.choose(each, five[:4]) != policy.choose(each, five) for each in queries)


def loads_of_three_models() -> float:
    from nanovllm.cluster.model_pool import ModelPool
    from nanovllm.cluster.model_specs import ModelSpec

    loads: list[str] = []
    specs = [ModelSpec(name, 5) for name in "abc"]
    pool = ModelPool(10, specs, lambda spec: loads.append(spec.name), lambda spec, loaded: None)
    for name in "abac" * 6:
        with pool.using(name):
            pass
    return len(loads)


QUESTIONS = [
    Question(
        key="a",
        text="The K and V of a prompt of 1,000 tokens of the bundled model (4 layers, 4 key/value "
        "heads of 32, float32) are sent in blocks of 16: how many KiB go over the wire?",
        unit="KiB",
        tasks=(1,),
        answer=kib_on_the_wire,
    ),
    Question(
        key="b",
        text="K and V of all 150 tokens of a prompt have arrived; the first 48 are in the engine's "
        "own prefix cache: how many tokens are loaded?",
        unit="tokens",
        tasks=(1, 2),
        answer=tokens_to_load,
    ),
    Question(
        key="c",
        text="Four requests decode, a token each 4 to 6 ms. A prompt of 1,000 tokens arrives, and "
        "prefills go first (a step is 4 ms, and 0.2 ms a token): how long do the four wait for "
        "their next token at most?",
        unit="ms",
        tasks=(3,),
        answer=longest_gap,
    ),
    Question(
        key="d",
        text="1,000 users are spread over four replicas by rendezvous hash; a fifth replica comes: "
        "how many users change their replica?",
        unit="users",
        tasks=(4,),
        answer=keys_that_move,
    ),
    Question(
        key="e",
        text="Three models of equal size, memory for two, 24 requests for a, b, a, c, a, b, a, c, "
        "...: how many times is a model loaded, if the longest unused one makes room?",
        unit="loads",
        tasks=(6,),
        answer=loads_of_three_models,
    ),
]
