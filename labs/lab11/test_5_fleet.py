"""Task 5: a fleet, its size, and its next version."""

import random

import pytest

from grader import expect
from nanovllm.cluster.autoscaler import Autoscaler, to_drain
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.fleet import Fleet, Replica, State
from nanovllm.cluster.rollout import Actions, BlueGreen, Canary, Rolling, Sticky

STARTING, READY, DRAINING, DEAD = State.STARTING, State.READY, State.DRAINING, State.DEAD


def a_fleet(*calls):
    """A fleet after these calls, written as words: "start a v1"."""
    fleet = Fleet()
    for call in calls:
        method, *args = call.split()
        getattr(fleet, method)(*args)
    return fleet


def states(fleet):
    return {name: (r.state.value, r.open) for name, r in fleet.replicas.items()}


@pytest.mark.check(task=5, points=1, title="From start to ready to drained")
def test_life():
    fleet, seen = Fleet(), []
    for call in (
        "start a v1", "ready a", "begin a", "begin a", "drain a", "end a", "end a", "end a",
        "start b v1", "drain b", "start c v1", "ready c", "drain c",
    ):  # fmt: skip
        method, *args = call.split()
        getattr(fleet, method)(*args)
        seen.append((call, states(fleet)[args[0]]))
    expect(
        seen,
        [
            ("start a v1", ("starting", 0)),
            ("ready a", ("ready", 0)),
            ("begin a", ("ready", 1)),
            ("begin a", ("ready", 2)),
            ("drain a", ("draining", 2)),
            ("end a", ("draining", 1)),
            ("end a", ("dead", 0)),
            ("end a", ("dead", 0)),
            ("start b v1", ("starting", 0)),
            ("drain b", ("dead", 0)),
            ("start c v1", ("starting", 0)),
            ("ready c", ("ready", 0)),
            ("drain c", ("dead", 0)),
        ],
        call="state and open requests of the replica after each call",
        cause="who drains finishes what it has; one with nothing open is dead at once",
    )


@pytest.mark.check(task=5, points=1, title="Who may be asked, and who counts")
def test_choosable():
    fleet = a_fleet(
        "start a v1", "start b v2", "start c v1", "start d v2", "start e v1", "ready d", "ready a",
        "ready e", "begin e", "drain e", "ready b", "crash b",
    )  # fmt: skip
    expect(
        [
            fleet.choosable(),
            fleet.choosable("v1"),
            fleet.choosable("v3"),
            [r.name for r in fleet.living()],
            [r.name for r in fleet.living("v1")],
        ],
        [["a", "d"], ["a"], [], ["a", "c", "d"], ["a", "c"]],
        call="choosable(), choosable('v1'), choosable('v3'), names of living() and living('v1')",
        given={"fleet": {n: f"{r.version} {r.state.value}" for n, r in fleet.replicas.items()}},
        cause="only ready ones are asked; who starts is capacity on its way; in order of start",
    )


@pytest.mark.check(task=5, points=1, title="Crashes, and names used again")
def test_crash():
    fleet = a_fleet("start a v1", "ready a", "begin a", "begin a", "start b v1")
    lost = [fleet.crash("a"), fleet.crash("b")]
    fleet.end("a")
    expect(
        [lost, states(fleet)],
        [[2, 0], {"a": ("dead", 0), "b": ("dead", 0)}],
        call="what crash('a') with two open requests and crash('b') give; the fleet after end('a')",
        cause="the end of a request that was lost means nothing",
    )
    fleet.start("a", "v2")
    fleet.ready("a")
    fleet.begin("a")
    expect(
        [states(fleet), fleet.replicas["a"].version, fleet.choosable(), list(fleet.replicas)],
        [{"b": ("dead", 0), "a": ("ready", 1)}, "v2", ["a"], ["b", "a"]],
        call="the fleet when a new replica a of version v2 has started and has one request",
        cause="the name of a dead one may be used again; nothing is left of the old one",
    )
    fleet.drain("a")
    expect(fleet.crash("a"), 1, call="crash of one that drains and has one open")


@pytest.mark.check(task=5, points=1, title="Steps that cannot be")
def test_illegal():
    ways = {
        "starting": ["start a v1"],
        "ready": ["start a v1", "ready a"],
        "draining": ["start a v1", "ready a", "begin a", "drain a"],
        "dead": ["start a v1", "crash a"],
    }
    allowed = {
        "starting": {"ready", "drain", "crash", "end"},
        "ready": {"drain", "crash", "begin", "end"},
        "draining": {"crash", "end"},
        "dead": {"start", "end"},
    }
    for state, calls in ways.items():
        for method in ("start", "ready", "drain", "crash", "begin", "end"):
            fleet = a_fleet(*calls)
            before = states(fleet)
            args = ("a", "v2") if method == "start" else ("a",)
            if method in allowed[state]:
                getattr(fleet, method)(*args)
                continue
            expect.raises(
                ClusterError,
                lambda f=fleet, m=method, a=args: getattr(f, m)(*a),
                call=f"{method}('a') of a replica that is {state}",
                cause="a starting one becomes ready, a ready or starting one drains, a ready one "
                "begins; none comes back from the dead",
            )
            expect(states(fleet), before, call=f"the fleet after {method}('a') was refused")
    for method in ("ready", "drain", "crash", "begin", "end"):
        expect.raises(
            ClusterError,
            lambda m=method: getattr(a_fleet("start a v1"), m)("z"),
            call=f"{method}('z') of a fleet that has no z",
        )


@pytest.mark.check(task=5, points=1, title="How many the load wants")
def test_wanted():
    for settings, cases in (
        (
            {"target": 10, "most": 5},
            {(0, 2): 1, (9, 2): 1, (18, 2): 2, (22, 2): 2, (17, 2): 2, (23, 2): 3, (999, 2): 5,
             (20, 2): 2, (31, 2): 4, (30, 2): 3, (11, 1): 1, (12, 1): 2},
        ),
        ({"target": 4, "least": 2, "slack": 0.0}, {(0, 3): 2, (12, 3): 3, (13, 3): 4, (11, 3): 3}),
        ({"target": 2.5, "least": 0, "slack": 0.5}, {(0, 2): 0, (7, 2): 2, (8, 2): 4, (0, 0): 0}),
        ({"target": 10, "most": 3}, {(40, 4): 3, (40, 9): 3}),
    ):  # fmt: skip
        scaler = Autoscaler(**settings)
        expect(
            {case: scaler.wanted(*case) for case in cases},
            cases,
            call="Autoscaler(...).wanted(open_requests, living)",
            given=settings,
            cause="as many as bring the load to the target, `living` while it is within the slack "
            "of what they are for; then the bounds",
        )


def decisions(scaler, story):
    return [scaler.decide(*each) for each in story]


@pytest.mark.check(task=5, points=1, title="Late enough to be sure")
def test_decide():
    stories = {
        "more, for 5 s without a break": [
            ((0.0, 30, 1), 1), ((4.9, 30, 1), 1), ((5.0, 30, 1), 3), ((5.1, 30, 3), 3),
        ],
        "a break begins the wait anew": [
            ((0.0, 30, 1), 1), ((4.0, 10, 1), 1), ((6.0, 30, 1), 1), ((10.9, 30, 1), 1),
            ((11.0, 30, 1), 3),
        ],
        "fewer takes 20 s": [
            ((0.0, 0, 3), 3), ((5.0, 0, 3), 3), ((19.0, 0, 3), 3), ((20.0, 0, 3), 1),
        ],
        "fewer, then more": [
            ((0.0, 0, 3), 3), ((19.0, 90, 3), 3), ((23.0, 90, 3), 3), ((24.0, 90, 3), 8),
        ],
        "what is wanted may change meanwhile": [
            ((0.0, 30, 1), 1), ((3.0, 90, 1), 1), ((5.0, 50, 1), 5),
        ],
        "after a change the wait begins anew": [
            ((0.0, 30, 1), 1), ((5.0, 30, 1), 3), ((6.0, 60, 3), 3), ((10.9, 60, 3), 3),
            ((11.0, 60, 3), 6),
        ],
    }  # fmt: skip
    for name, story in stories.items():
        scaler = Autoscaler(target=10, up_delay=5.0, down_delay=20.0)
        expect(
            decisions(scaler, [call for call, _ in story]),
            [wanted for _, wanted in story],
            call="decide(now, open_requests, living), one after the other",
            given={"up_delay": 5, "down_delay": 20, "calls": [call for call, _ in story]},
            cause=name,
        )


@pytest.mark.check(task=5, points=1, title="Bounds are kept at once; whom to give up")
def test_bounds():
    scaler = Autoscaler(target=10, least=2, most=4, up_delay=5.0, down_delay=5.0)
    story = [(0.0, 99, 4), (1.0, 0, 1), (2.0, 0, 0), (3.0, 99, 7), (4.0, 99, 3), (8.0, 99, 3)]
    expect(
        decisions(scaler, story),
        [4, 2, 2, 4, 3, 3],
        call="decide(now, open_requests, living), one after the other",
        given={"least": 2, "most": 4, "delays": 5, "calls": story},
        cause="below `least` and above `most` nobody waits",
    )
    expect(scaler.decide(9.0, 99, 3), 4, call="decide(9, 99, 3) after that, 5 s after it began")
    scaler = Autoscaler(target=10, least=2, up_delay=5.0)
    story = [(0.0, 99, 3), (6.0, 99, 1), (7.0, 99, 2), (11.9, 99, 2), (12.0, 99, 2)]
    expect(
        decisions(scaler, story),
        [3, 2, 2, 2, 8],
        call="decide(now, open_requests, living), one after the other",
        given={"least": 2, "up_delay": 5, "calls": story},
        cause="below `least` the answer is `least`, and the wait for more begins anew",
    )
    some = [
        Replica("a", "v", READY, 3), Replica("b", "v", DRAINING, 0), Replica("c", "v", READY, 1),
        Replica("d", "v", DEAD), Replica("e", "v", STARTING), Replica("f", "v", READY, 2),
    ]  # fmt: skip
    shown = {r.name: f"{r.state.value}, {r.open} open" for r in some}
    for order in (some, some[::-1]):
        expect(
            [to_drain(iter(order), count) for count in (0, 1, 2, 3, 4, 9)],
            [[], ["e"], ["e", "c"], ["e", "c", "f"], ["e", "c", "f", "a"], ["e", "c", "f", "a"]],
            call="to_drain(replicas, count) for counts 0, 1, 2, 3, 4, 9",
            given={"replicas": shown},
            cause="starting ones first, then those with the fewest open; others are not living",
        )


def rolled_out(plan, size, draw, crashes=0):
    """Carry out a plan step by step, in a world where replicas start when they like.

    Gives for each step: ready and living replicas of both versions before it, and the actions."""
    fleet = Fleet()
    for n in range(size):
        fleet.start(f"old{n}", "v1")
        fleet.ready(f"old{n}")
        for _ in range(draw.randrange(4)):
            fleet.begin(f"old{n}")
    steps, count = [], 0
    for _ in range(60):
        for name in [n for n, r in fleet.replicas.items() if r.state is STARTING]:
            if draw.random() < 0.5:
                fleet.ready(name)
        if crashes and draw.random() < 0.2:
            crashes -= 1
            fleet.crash(draw.choice(fleet.living()).name)
        actions = plan.next(fleet, "v1", "v2")
        steps.append(
            {
                "ready": (len(fleet.choosable("v1")), len(fleet.choosable("v2"))),
                "living": (len(fleet.living("v1")), len(fleet.living("v2"))),
                "start": actions.start,
                "drain": list(actions.drain),
                "open": {r.name: r.open for r in fleet.living("v1")},
            }
        )
        for _ in range(actions.start):
            fleet.start(f"new{count}", "v2")
            count += 1
        for name in actions.drain:
            fleet.drain(name)
        for name, replica in list(fleet.replicas.items()):
            if replica.open and draw.random() < 0.3:
                fleet.end(name)
    return steps, fleet


@pytest.mark.check(task=5, points=1, title="Rolling")
def test_rolling(seed):
    ready = a_fleet(
        *(f"start {n} v1" for n in "abc"), *(f"ready {n}" for n in "abc"), "begin a", "begin c"
    )
    expect(
        Rolling(3).next(ready, "v1", "v2"),
        Actions(1, ()),
        call="Rolling(3).next(fleet, 'v1', 'v2') when three old ones are ready",
        cause="first one more, then one old one less",
    )
    for call in ("start n1 v2", "ready n1"):
        method, *args = call.split()
        getattr(ready, method)(*args)
    expect(
        Rolling(3).next(ready, "v1", "v2"),
        Actions(0, ("b",)),
        call="Rolling(3).next(...) when one new one is ready as well",
        given={"open": {"a": 1, "b": 0, "c": 1}},
        cause="size + surge are living: nothing can start before one old one drains, which is the "
        "one with the fewest open requests",
    )
    crowd = a_fleet(*(f"start {n} v2" for n in "abc"), *(f"ready {n}" for n in "ab"))
    expect(
        Rolling(2).next(crowd, "v1", "v2"),
        Actions(0, ()),
        call="Rolling(2).next(...) when no old one and three new ones are living",
        cause="nothing is missing; new ones are not for Rolling to drain",
    )
    early = a_fleet(*(f"start {n} v1" for n in "abc"), "ready a", "ready b")
    expect(
        Rolling(2).next(early, "v1", "v2"),
        Actions(0, ("c",)),
        call="Rolling(2).next(...) when a and b are ready and c is starting, all of them old",
        cause="old ones that are still starting are drained at once, though no ready one can go",
    )
    for number in range(12):
        draw = random.Random(seed + number)
        size, surge = draw.randint(1, 5), draw.randint(1, 3)
        steps, fleet = rolled_out(Rolling(size, surge), size, draw)
        given = {"size": size, "surge": surge}
        for step in steps:
            living, ready_now = sum(step["living"]), sum(step["ready"])
            told = {**given, "step": {k: v for k, v in step.items() if k != "open"}}
            expect.that(
                living + step["start"] <= size + surge,
                "at most size + surge are living",
                observed=living + step["start"],
                call="living replicas after Rolling.next and what it starts",
                given=told,
                cause="the old ones that drain now are living until they are told",
            )
            expect.that(
                ready_now - len(step["drain"]) >= size or not step["drain"],
                "size replicas stay ready while old ones drain",
                observed=ready_now - len(step["drain"]),
                call="ready replicas after Rolling.next and what it drains",
                given=told,
                cause="one that is starting answers nobody yet",
            )
            idle = sorted(step["open"].values())[: len(step["drain"])]
            expect(
                [
                    step["start"],
                    len(step["drain"]),
                    sorted(step["open"][name] for name in step["drain"]),
                ],
                [
                    max(0, min(size - step["living"][1], size + surge - living)),
                    max(0, min(step["living"][0], ready_now - size)),
                    idle,
                ],
                call="how many Rolling.next starts, how many it drains, and their open requests",
                given=told,
                cause="nothing is put off that the bounds allow; the fewest open requests first",
            )
        expect(
            [len(fleet.living("v1")), len(fleet.choosable("v2")), steps[-1]["start"]],
            [0, size, 0],
            call="old replicas, new ready ones, and what is still to start after 60 steps",
            given=given,
            cause="called again and again, it ends with `size` new ones",
        )


@pytest.mark.check(task=5, points=1, title="Blue and green")
def test_blue_green(seed):
    fleet = a_fleet(
        *(f"start {n} v1" for n in "ab"), "ready a", *(f"start {n} v2" for n in "xyz"),
        *(f"ready {n}" for n in "xyz"), "begin z", "drain z",
    )  # fmt: skip
    for size, wanted in ((2, [0, ["a", "b"]]), (3, [1, []])):
        actions = BlueGreen(size).next(fleet, "v1", "v2")
        expect(
            [actions.start, sorted(actions.drain)],
            wanted,
            call=f"how many BlueGreen({size}).next starts, and which it drains",
            given={"fleet": {n: f"{r.version} {r.state.value}" for n, r in fleet.replicas.items()}},
            cause="who drains is none of the new ones any more; all old ones that are living drain "
            "at one moment, also those that are starting",
        )
    for number in range(12):
        draw = random.Random(seed + number)
        size, old = draw.randint(1, 4), draw.randint(1, 4)
        steps, fleet = rolled_out(BlueGreen(size), old, draw, crashes=draw.randrange(3))
        for step in steps:
            given = {"size": size, "step": {k: v for k, v in step.items() if k != "open"}}
            ready = step["ready"][1]
            expect(
                [step["start"], sorted(step["drain"])],
                [max(0, size - step["living"][1]), sorted(step["open"]) if ready >= size else []],
                call="how many BlueGreen(size).next starts, and which it drains",
                given=given,
                cause="the old ones drain at one moment: when all of the new ones are ready",
            )
        expect(len(fleet.living("v1")), 0, call="old replicas after 60 steps", given={"size": size})


class Restless(str):
    """A key whose hash() is another each time, as that of a str is in another process."""

    draws = random.Random(3)

    def __hash__(self):
        return self.draws.randrange(2**60)


@pytest.mark.check(task=5, points=1, title="Canary")
def test_canary():
    keys = [f"conversation {n}" for n in range(800)]
    chosen = {}
    for share in (0.0, 0.05, 0.3, 0.8, 1.0):
        canary = Canary(share)
        chosen[share] = {k for k in keys if canary.version_for(k, "v1", "v2") == "v2"}
        expect(
            [
                abs(len(chosen[share]) / 800 - share) <= 0.06,
                {k for k in keys if canary.version_for(k, "v1", "v2") == "v2"} == chosen[share],
                {canary.version_for(k, "v1", "v2") for k in keys} <= {"v1", "v2"},
            ],
            [True] * 3,
            call="whether about that share of 800 conversations get the new version, the same ones "
            "when asked again, and nobody a third version",
            given={"share": share, "got it": len(chosen[share])},
            cause="a draw for each request changes the model in the middle of a conversation",
        )
    grown = [chosen[a] <= chosen[b] for a, b in ((0.0, 0.05), (0.05, 0.3), (0.3, 0.8), (0.8, 1.0))]
    expect(
        [grown, len(chosen[0.0]), len(chosen[1.0])],
        [[True] * 4, 0, 800],
        call="whether those on the new version stay there when the share grows; how many have it "
        "at shares 0 and 1",
        cause="compare one fixed number for each conversation with the share",
    )
    again = {k for k in keys if Canary(0.3).version_for(Restless(k), "v1", "v2") == "v2"}
    expect(
        again == chosen[0.3],
        True,
        call="whether another process gives the new version to the same 30 %",
        given={"keys": "str objects whose hash() is another each time"},
        cause="Python's hash() of a str differs from process to process",
    )
    other = {k for k in keys if Canary(0.3).version_for(k, "v2", "v3") == "v3"}
    both = len(other & chosen[0.3])
    expect.that(
        40 <= both <= 110,
        "about 72 of 800 are in both trials of 30 %",
        observed=both,
        call="conversations that get the new version in two rollouts, v1 to v2 and v2 to v3",
        cause="the next trial should not always meet the same users: draw with a salt, the version",
    )


@pytest.mark.check(task=5, points=1, title="A conversation stays on its version")
def test_sticky():
    sticky = Sticky()
    story = [
        (("Mia", "v1", ["v1", "v2"]), "v1"), (("Mia", "v2", ["v1", "v2"]), "v1"),
        (("Tom", "v2", ["v1", "v2"]), "v2"), (("Tom", "v1", ["v2", "v1"]), "v2"),
        (("Mia", "v2", ["v2", "v3"]), "v2"), (("Mia", "v1", ["v1", "v2"]), "v2"),
        (("Mia", "v9", ["v3", "v1"]), "v3"), (("Mia", "v1", ["v1", "v3"]), "v3"),
        (("Ann", "v9", ("v2", "v1")), "v2"), (("Tom", "v1", ["v2"]), "v2"),
    ]  # fmt: skip
    expect(
        [sticky.version(*call) for call, _ in story],
        [wanted for _, wanted in story],
        call="Sticky.version(key, wanted, available), one after the other",
        given={"calls": [call for call, _ in story]},
        cause="the version it began on while that is available; else the wanted one, else the "
        "first; and from now on that one",
    )
    sticky.end("Mia")
    sticky.end("nobody")
    expect(
        [sticky.version("Mia", "v1", ["v3", "v1"]), sticky.version("Tom", "v1", ["v1", "v2"])],
        ["v1", "v2"],
        call="version of Mia, whose conversation has ended, and of Tom, whose has not",
        cause="a new conversation begins anew",
    )
    expect.raises(
        ClusterError, lambda: sticky.version("Tom", "v1", []), call="Sticky.version(..., [])"
    )
    expect(
        sticky.version("Tom", "v1", ["v1", "v2"]),
        "v2",
        call="the version of Tom after nothing was available for a moment",
    )


def drawn(draw, length):
    calls = ("start", "ready", "drain", "crash", "begin", "begin", "end", "ready")
    return [
        (draw.choice(calls), draw.choice("abc"), draw.choice(("v1", "v2"))) for _ in range(length)
    ]


def beside_a_table(calls):
    """The calls up to the first after which a fleet differs from a plain table, with what it
    gave and what was expected; nothing if it never does."""
    fleet, table, story = Fleet(), {}, []
    legal = {
        "ready": {STARTING: READY}, "drain": {STARTING: DEAD, READY: DRAINING},
        "crash": {STARTING: DEAD, READY: DEAD, DRAINING: DEAD}, "begin": {READY: READY},
        "end": {state: state for state in State},
    }  # fmt: skip
    for method, name, version in calls:
        args = (name, version) if method == "start" else (name,)
        story.append(" ".join((method, *args)))
        try:
            got = getattr(fleet, method)(*args)
        except ClusterError:
            got = "ClusterError"
        want, row = None, table.get(name)
        if method == "start":
            if row is not None and row[0] is not DEAD:
                want = "ClusterError"
            else:
                table.pop(name, None)
                table[name] = [STARTING, 0, version]
        elif row is None or row[0] not in legal[method]:
            want = "ClusterError"
        else:
            if method == "crash":
                want, row[1] = row[1], 0
            row[0] = legal[method][row[0]]
            row[1] += {"begin": 1, "end": -1 if row[1] else 0}.get(method, 0)
            if row[0] is DRAINING and not row[1]:
                row[0] = DEAD
        found = [(n, r.version, r.state.value, r.open) for n, r in fleet.replicas.items()]
        rows = [(n, row[2], row[0].value, row[1]) for n, row in table.items()]
        ready = [n for n, row in table.items() if row[0] is READY]
        if (got, found, fleet.choosable()) != (want, rows, ready):
            return story, [got, found, fleet.choosable()], [want, rows, ready]
    return ()


@pytest.mark.check(task=5, points=1, title="A fleet beside a table (random)", stress=True)
def test_random(seed):
    draw = random.Random(seed)
    for _ in range(80):
        calls, at = drawn(draw, 30), 0
        while beside_a_table(calls) and at < len(calls):
            fewer = calls[:at] + calls[at + 1 :]
            calls, at = (fewer, 0) if beside_a_table(fewer) else (calls, at + 1)
        story, got, want = beside_a_table(calls) or ([], [], [])
        expect(
            got,
            want,
            call="what the last call gives, each of `replicas` in order, choosable()",
            given={"history": "\n".join(("a fleet:", *story))},
            cause="the shortest history found in which it differs from a plain table",
        )
