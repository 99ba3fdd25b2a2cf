"""Task 7: what our parts are to Ray Serve. Ray itself is not needed."""

import random

import pytest

from grader import expect
from nanovllm.cluster.autoscaler import Autoscaler
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.ray_parts import Candidate, Memory, deployment_options, rank_replicas
from nanovllm.cluster.routing_interface import Query, ReplicaLoad


class Chooser:
    """A policy that chooses the last of those it is asked about, and notes them."""

    def __init__(self):
        self.asked = []

    def choose(self, query, replicas):
        self.asked.append((query, list(replicas)))
        return replicas[-1].name


def candidates(*rows):
    """Candidates from (name, open requests, models)."""
    return [
        Candidate(ReplicaLoad(name, requests, 10 * requests), 4, frozenset(models))
        for name, requests, models in rows
    ]


def ranked(some, model=""):
    policy, query = Chooser(), Query("Mia", (1,), 20)
    found = rank_replicas(policy, query, some, model)
    return [list(rank) for rank in found], policy.asked, query


def compare(some, model, wanted, asked, cause):
    given = {
        "candidates (open of 4, models)": {
            c.load.name: (c.load.requests, sorted(c.models)) for c in some
        },
        "model": model,
        "the policy": "chooses the last that it is asked about",
    }
    found, questions, query = ranked(some, model)
    expect(
        found, wanted, call="rank_replicas(policy, query, candidates, model)", given=given,
        cause=cause,
    )  # fmt: skip
    expect(
        questions,
        [(query, [c.load for c in some if c.load.name in asked])] if asked else [],
        call="what the policy was asked: the query and the loads of replicas",
        given=given,
        cause="it is asked once, about those that can take the request at once",
    )


@pytest.mark.check(task=7, points=1, title="The policy's choice first")
def test_ranks():
    some = candidates(("a", 0, ""), ("b", 3, ""), ("c", 1, ""))
    compare(some, "", [["c"], ["a", "b"]], "abc", "the others are asked if that one refuses")
    compare(some[:1], "", [["a"]], "a", "no rank is empty")
    compare([], "", [], "", "without candidates there is no rank, and nothing to ask")


@pytest.mark.check(task=7, points=1, title="Full ones last")
def test_full():
    some = candidates(("a", 0, ""), ("b", 4, ""), ("c", 1, ""), ("d", 9, ""))
    compare(some, "", [["c"], ["a"], ["b", "d"]], "ac", "a full one would refuse: asked last")
    full = candidates(("a", 4, "x"), ("b", 5, "x"))
    compare(full, "x", [["a", "b"]], "", "where all are full, there is nothing to choose")


@pytest.mark.check(task=7, points=1, title="Who has the model")
def test_models():
    some = candidates(("a", 0, ""), ("b", 1, "xy"), ("c", 2, "x"), ("d", 0, "y"), ("e", 4, "x"))
    compare(
        some, "x", [["c"], ["b"], ["a", "d"], ["e"]], "bc",
        "loading a model takes longer than to wait behind a request",
    )  # fmt: skip
    compare(
        some, "z", [["d"], ["a", "b", "c"], ["e"]], "abcd",
        "nobody has it: one of all that are not full loads it",
    )  # fmt: skip
    compare(
        some, "y", [["d"], ["b"], ["a", "c"], ["e"]], "bd", "those that have the model come first"
    )
    compare(some, "", [["d"], ["a", "b", "c"], ["e"]], "abcd", "without a model everybody has it")
    only = candidates(("a", 4, "x"), ("b", 0, "y"), ("c", 0, ""))
    compare(
        only, "x", [["c"], ["b"], ["a"]], "bc", "the only one that has it is full: others load it"
    )


@pytest.mark.check(task=7, points=1, title="What a replica has loaded")
def test_memory():
    for most, story, wanted in (
        (2, "x y z", "yz"),
        (2, "x y x z", "xz"),
        (1, "x y y x", "x"),
        (3, "x y z x w", "zxw"),
        (3, "x x x", "x"),
    ):
        memory = Memory(most)
        for model in story.split():
            memory.sent("a", model)
        memory.sent("b", "q")
        expect(
            [memory.models("a"), memory.models("b"), memory.models("c")],
            [frozenset(wanted), frozenset("q"), frozenset()],
            call="models of a, of b, and of a replica that nobody knows",
            given={"most": most, "sent to a": story, "sent to b": "q"},
            cause="the one that was asked for the longest ago is unloaded, on that replica",
        )
        memory.lost("a")
        memory.lost("z")
        expect(
            [memory.models("a"), memory.models("b")],
            [frozenset(), frozenset("q")],
            call="models of a and b after lost('a') and lost('z')",
            cause="a restarted replica has loaded nothing",
        )
    before = memory.models("b")
    memory.sent("b", "r")
    expect(
        [before, memory.models("b")],
        [frozenset("q"), frozenset("qr")],
        call="models('b') as it was given, and after another request",
    )
    for most in (0, -1):
        expect.raises(ClusterError, lambda most=most: Memory(most), call=f"Memory({most})")


@pytest.mark.check(task=7, points=1, title="Our autoscaler in Ray's words")
def test_options():
    for scaler, capacity, drain in (
        (Autoscaler(4, 1, 3, 2.0, 9.0), 8, 30.0),
        (Autoscaler(2.5, 0, 7, 11.0, 5.0, slack=0.3), 3, 1.5),
        (Autoscaler(6), 6, 60.0),
    ):
        s = scaler
        numbers = (s.least, s.most, s.target, s.up_delay, s.down_delay)
        names = (
            "min_replicas max_replicas target_ongoing_requests upscale_delay_s downscale_delay_s"
        )
        wanted = {"max_ongoing_requests": int(capacity), "graceful_shutdown_timeout_s": drain}
        wanted["autoscaling_config"] = dict(zip(names.split(), numbers, strict=True))
        expect(
            deployment_options(scaler, capacity, drain),
            wanted,
            call="deployment_options(scaler, capacity, drain_seconds)",
            given={"scaler": scaler, "capacity": capacity, "drain_seconds": drain},
        )
    for target, capacity in ((4, 3), (2.5, 2)):
        expect.raises(
            ClusterError,
            lambda t=target, c=capacity: deployment_options(Autoscaler(t), c, 1.0),
            call="deployment_options(Autoscaler(target), capacity, 1.0)",
            given={"target": target, "capacity": capacity},
            cause="a full replica refuses before Ray sees that more are needed",
        )


@pytest.mark.check(task=7, points=1, title="Every candidate once (random)", stress=True)
def test_random(seed):
    draw = random.Random(seed)
    for _ in range(100):
        some = candidates(
            *((n, draw.randrange(6), draw.choice(("", "x", "y", "xy"))) for n in
              draw.sample("abcdefg", draw.randint(0, 6)))
        )  # fmt: skip
        model = draw.choice(("", "x", "y", "z"))
        free = [c for c in some if c.load.requests < 4]
        near = [c for c in free if model in ("", *c.models)]
        asked = [c.load.name for c in near or free]
        order = [
            [n for n in (c.load.name for c in group) if n not in asked[-1:]]
            for group in (
                near,
                [c for c in free if c not in near],
                [c for c in some if c.load.requests >= 4],
            )
        ]
        wanted = [rank for rank in (asked[-1:], *order) if rank]
        compare(some, model, wanted, "".join(asked), "by rank; each of them once")
