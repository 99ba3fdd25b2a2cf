"""Task 4: routing. Policies and the index are judged by what they do."""

import gc
import random
import weakref
from collections import Counter

import pytest

from grader import expect
from nanovllm.cluster.block_index import BlockIndex
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.open_work import OpenWork
from nanovllm.cluster.routing import make_policy
from nanovllm.cluster.routing_interface import POLICIES, Query, ReplicaLoad


class Block:
    """A hash that is an object: it can be watched until nobody keeps it."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"block {self.name}"


class Watched:
    """A hash that notes when somebody hashes or compares it."""

    touched = set()

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        self.touched.add(self.number)
        return self.number

    def __eq__(self, other):
        self.touched.add(self.number)
        return isinstance(other, Watched) and self.number == other.number


class Restless(str):
    """A key whose hash() is another each time, as that of a str is in another process."""

    draws = random.Random(3)

    def __eq__(self, other):
        return str.__eq__(self, other)

    def __hash__(self):
        return self.draws.randrange(2**60)


def replicas(**requests):
    """ReplicaLoads by name: open requests, or (requests, tokens)."""
    return [
        ReplicaLoad(name, *(load if isinstance(load, tuple) else (load,)))
        for name, load in requests.items()
    ]


def policy_of(name, index=None, seed=0):
    return make_policy(name, BlockIndex() if index is None else index, seed)


def told(index, events):
    for kind, *rest in events:
        getattr(index, kind)(*rest)
    return index


@pytest.mark.check(task=4, points=1, title="The longest beginning that a replica has")
def test_match():
    index = told(
        BlockIndex(),
        [
            ("stored", "a", [1, 2, 4]),
            ("stored", "b", [1]),
            ("stored", "c", [2, 3]),
            ("stored", "a", ["x"]),
        ],
    )
    for asked, wanted in (
        ([1, 2, 3, 4], {"a": 2, "b": 1}),
        ([1, 2], {"a": 2, "b": 1}),
        ([2, 3, 4], {"a": 1, "c": 2}),
        ([9, 1], {}),
        ([4, 4, 1], {"a": 3, "b": 0}),
        (["x"], {"a": 1}),
        ([], {}),
    ):
        expect(
            index.match(asked),
            {name: count for name, count in wanted.items() if count},
            call=f"match({asked})",
            given={"a": [1, 2, 4, "x"], "b": [1], "c": [2, 3]},
            cause="blocks from the first on, without a gap: what stands behind a missing block "
            "cannot be used",
        )
    found, kept = index.match([1]), index.match([2])
    found["z"] = 7
    found["a"] = 0
    expect(
        [index.match([1]), kept],
        [{"a": 1, "b": 1}, {"a": 1, "c": 1}],
        call="match([1]) after its caller has changed the last result, and what match([2]) gave "
        "before",
        cause="the result is the caller's",
    )


@pytest.mark.check(task=4, points=1, title="A look at what matches, not at what is stored")
def test_match_looks():
    index, blocks = BlockIndex(), [Watched(n) for n in range(10)]
    index.stored("a", [*blocks[:3], *blocks[4:]])
    index.stored("b", [blocks[0], *(Watched(n) for n in range(10, 40))])
    Watched.touched.clear()
    found = index.match(blocks)
    expect(
        [found, sorted(Watched.touched - {0, 1, 2, 3})],
        [{"a": 3, "b": 1}, []],
        call="match([block 0, ..., block 9]), and the blocks that it hashed or compared besides 0 "
        "to 3",
        given={"a": "0 to 2 and 4 to 9", "b": "0 and 10 to 39"},
        cause="behind the first block that nobody holds nothing can match, and what is stored is "
        "far more than what is asked for",
    )


@pytest.mark.check(task=4, points=2, title="What a replica gave up")
def test_removed():
    index = told(BlockIndex(), [("stored", "a", [1, 2, 3]), ("stored", "b", [1, 2, 3])])
    steps = [
        (("removed", "a", [2]), {"a": 1, "b": 3}),
        (("removed", "a", [2, 9]), {"a": 1, "b": 3}),
        (("stored", "a", [2]), {"a": 3, "b": 3}),
        (("stored", "a", [2]), {"a": 3, "b": 3}),
        (("removed", "a", [2]), {"a": 1, "b": 3}),
        (("removed", "z", [1]), {"a": 1, "b": 3}),
        (("removed", "a", [1]), {"b": 3}),
        (("stored", "a", [1, 2]), {"a": 3, "b": 3}),
    ]
    story = ["stored a [1, 2, 3]", "stored b [1, 2, 3]"]
    for (kind, name, blocks), wanted in steps:
        getattr(index, kind)(name, blocks)
        story.append(f"{kind} {name} {blocks}")
        expect(
            index.match([1, 2, 3]),
            wanted,
            call="match([1, 2, 3])",
            given={"events": list(story)},
            cause="an event that comes twice is as one; a block that was removed ends the match, "
            "and what stands behind it is there still",
        )


@pytest.mark.check(task=4, points=2, title="A replica that was restarted")
def test_cleared():
    index = told(
        BlockIndex(), [("stored", "a", [1, 2]), ("stored", "b", [2, 1]), ("stored", "a", [5])]
    )
    sizes = [index.size("a"), index.size("b"), index.size("z")]
    index.cleared("a")
    index.cleared("z")
    expect(
        [sizes, index.match([1, 2]), index.size("a"), index.size("b")],
        [[3, 2, 0], {"b": 2}, 0, 2],
        call="size of a, b, z; after cleared('a') and cleared('z'): match([1, 2]), size('a'), "
        "size('b')",
        given={"a": [1, 2, 5], "b": [2, 1], "z": "nobody knows it"},
        cause="its cache is empty after a restart; others keep what they have",
    )
    index.stored("a", [1])
    expect(
        [index.match([1, 2]), index.size("a")],
        [{"a": 1, "b": 2}, 1],
        call="match([1, 2]) and size('a') when a has stored block 1 anew",
    )


@pytest.mark.check(task=4, points=2, title="What nobody holds is not kept")
def test_forgotten():
    index = BlockIndex()
    blocks = [Block(n) for n in range(6)]
    watched = [weakref.ref(block) for block in blocks]
    index.stored("a", blocks[:4])
    index.stored("b", blocks[2:])
    index.match(blocks)
    index.removed("a", blocks[:3])
    index.cleared("b")
    index.removed("c", blocks)
    blocks.clear()
    gc.collect()
    expect(
        [[ref() is not None for ref in watched], index.size("a"), index.size("b")],
        [[False, False, False, True, False, False], 1, 0],
        call="which of 6 hashes something still keeps; the sizes of a and b",
        given={
            "events": "stored a 0-3; stored b 2-5; removed a 0-2; cleared b; removed c 0-5, which "
            "it never had"
        },
        cause="a router runs for months: what it keeps of a block ends when no replica holds it",
    )


def drawn(rng, length):
    kinds = rng.choice(
        ["stored", "removed", "cleared", "match"], p=[0.4, 0.27, 0.05, 0.28], size=length
    )
    return [
        (str(kind), "abc"[int(rng.integers(3))], rng.integers(0, 7, size=rng.integers(5)).tolist())
        for kind in kinds
    ]


def beside_sets(calls):
    """The calls up to the first after which an index differs from plain sets, with what match
    and size gave and what was expected; nothing if it never does."""
    index, plain, story = BlockIndex(), {name: set() for name in "abc"}, []
    for kind, name, some in calls:
        asked = some if kind == "match" else [0, 1, 2, 3, 4, 5, 6]
        if kind == "cleared":
            index.cleared(name)
            plain[name].clear()
            story.append(f"cleared {name}")
        elif kind != "match":
            story.append(f"{kind} {name} {some}")
            getattr(index, kind)(name, some)
            plain[name] = plain[name] | set(some) if kind == "stored" else plain[name] - set(some)
        wanted = {}
        for each, held in plain.items():
            count = 0
            while count < len(asked) and asked[count] in held:
                count += 1
            if count:
                wanted[each] = count
        found = index.match(asked)
        sizes, lengths = [index.size(each) for each in "abc"], [len(plain[each]) for each in "abc"]
        if found != wanted or sizes != lengths:
            return [*story, f"match {asked}"], [found, sizes], [wanted, lengths]
    return ()


@pytest.mark.check(task=4, points=2, title="The index beside sets (random)", stress=True)
def test_index_random(rng):
    for _ in range(80):
        calls, at = drawn(rng, 30), 0
        while beside_sets(calls) and at < len(calls):
            fewer = calls[:at] + calls[at + 1 :]
            calls, at = (fewer, 0) if beside_sets(fewer) else (calls, at + 1)
        story, got, want = beside_sets(calls) or ([], [], [])
        expect(
            got,
            want,
            call="the last match, and size of a, b, c",
            given={"history": "\n".join(("an index:", *story))},
            cause="the shortest history found in which it differs from a set for each replica",
        )


@pytest.mark.check(task=4, points=2, title="Policies by name")
def test_names():
    for name in POLICIES:
        choice = policy_of(name).choose(Query("k", (1,), 20), replicas(only=3))
        expect(choice, "only", call=f"make_policy({name!r}, index).choose(query, [one replica])")
    for wrong in ("random", "", "Round_Robin"):
        error = expect.raises(
            ClusterError,
            lambda wrong=wrong: policy_of(wrong),
            call=f"make_policy({wrong!r}, index)",
        )
        expect.that(
            all(name in str(error) for name in POLICIES),
            "the sentence says which policies there are",
            observed=str(error),
            call=f"make_policy({wrong!r}, index)",
        )


@pytest.mark.check(task=4, points=2, title="Round robin")
def test_round_robin():
    policy = policy_of("round_robin")
    some = replicas(c=0, a=9, b=3)
    rounds = [some, some[::-1], some, some[1:] + some[:1], some]
    found = [policy.choose(Query(), each) for each in rounds]
    expect(
        found,
        ["a", "b", "c", "a", "b"],
        call="five choices of round_robin among c, a, b, listed in another order each time",
        cause="in the order of their names, whatever is open there",
    )
    policy = policy_of("round_robin")
    groups = ["abd", "abd", "acd", "cd", "abcd", "b", "abcd", "abcd", "ad"]
    found = [policy.choose(Query(), [ReplicaLoad(n) for n in group]) for group in groups]
    expect(
        found,
        ["a", "b", "c", "d", "a", "b", "c", "d", "a"],
        call="choices of round_robin, one for each group",
        given={"groups": groups},
        cause="replicas come and go: the next is the one behind the last that was chosen, by name",
    )


@pytest.mark.check(task=4, points=1, title="Least loaded")
def test_least_loaded():
    policy = policy_of("least_loaded")
    for some, wanted in (
        (replicas(a=4, b=1, c=2), "b"),
        (replicas(c=2, b=2, a=3), "b"),
        (replicas(b=0, a=0), "a"),
        (replicas(a=(1, 900), b=(2, 10)), "a"),
    ):
        found = [policy.choose(Query("k"), each) for each in (some, some[::-1], some)]
        expect(
            found,
            [wanted] * 3,
            call="least_loaded.choose(query, replicas), three times",
            given={"open requests": {r.name: r.requests for r in some}},
            cause="open requests are what `replicas` says; a policy counts nothing itself",
        )


@pytest.mark.check(task=4, points=2, title="The better of two")
def test_power_of_two(seed):
    some = replicas(a=0, b=1, c=2, d=3)
    policy = policy_of("power_of_two", seed=seed)
    before = random.getstate()
    found = [policy.choose(Query("same"), some[n % 4 :] + some[: n % 4]) for n in range(1200)]
    expect(
        random.getstate() == before,
        True,
        call="whether the common random generator is as it was",
        cause="a policy has a generator of its own, so that a seed repeats a run",
    )
    again = policy_of("power_of_two", seed=seed)
    expect(
        [again.choose(Query("same"), some[::-1]) for _ in range(200)],
        found[:200],
        call="200 choices of two policies of one seed; replicas listed in another order",
    )
    other = policy_of("power_of_two", seed=seed + 1)
    expect(
        [other.choose(Query("same"), some) for _ in range(200)] == found[:200],
        False,
        call="whether 200 choices of a policy of another seed are the same",
        given={"seeds": [seed, seed + 1]},
        cause="`seed` begins the generator",
    )
    shares = Counter(found)
    near = {
        name: abs(shares[name] / 1200 - share) < 0.08
        for name, share in zip("abcd", (1 / 2, 1 / 3, 1 / 6, 0), strict=True)
    }
    expect(
        [near, shares["d"]],
        [dict.fromkeys("abcd", True), 0],
        call="whether a, b, c, d get about 1/2, 1/3, 1/6 and none of 1,200 requests; how many d "
        "gets",
        given={"open requests": {r.name: r.requests for r in some}, "shares": dict(shares)},
        cause="two different ones are drawn, every pair is as likely, and the less loaded is taken",
    )
    expect(
        {policy.choose(Query(str(n)), replicas(x=5, y=4)) for n in range(40)},
        {"y"},
        call="40 choices between x with 5 open requests and y with 4",
    )


@pytest.mark.check(task=4, points=2, title="One key, one replica")
def test_rendezvous():
    names = [f"r{n}" for n in range(5)]
    some = [ReplicaLoad(name, n) for n, name in enumerate(names)]
    keys = [f"user {n}" for n in range(600)]
    policy = policy_of("rendezvous")
    first = {key: policy.choose(Query(key, (n,)), some) for n, key in enumerate(keys)}
    shares = Counter(first.values())
    expect(
        [sum(70 <= shares[name] <= 175 for name in names)],
        [5],
        call="how many of 5 replicas get 70 to 175 of 600 keys",
        given={"shares": dict(shares)},
        cause="keys spread evenly, whatever is open there",
    )
    other = policy_of("rendezvous", seed=9)
    busy = [ReplicaLoad(name, 7 - n, 50 * n) for n, name in enumerate(names)][::-1]
    alike = [other.choose(Query(key, (n % 3, 5)), busy) == first[key] for n, key in enumerate(keys)]
    expect(
        sum(alike),
        600,
        call="for how many of 600 keys another router, with another seed, chooses alike when other "
        "things are open, replicas are listed in another order, and prompts differ",
        cause="only key and name count",
    )
    alike = [other.choose(Query(Restless(key)), some) == first[key] for key in keys]
    by_prompt = [
        {each.choose(Query("", (Restless(key), n)), some) for n, each in enumerate((policy, other))}
        for key in keys
    ]
    expect(
        [all(alike), all(len(names) == 1 for names in by_prompt)],
        [True, True],
        call="whether a router in another process chooses alike, by keys, and by first hashes "
        "where there is no key",
        given={"keys and hashes": "str objects whose hash() is another each time"},
        cause="Python's hash() of a str differs from process to process",
    )


@pytest.mark.check(task=4, points=2, title="A replica leaves, another comes")
def test_rendezvous_moves():
    four = [ReplicaLoad(name) for name in ("a", "b", "c", "d")]
    keys = [f"user {n}" for n in range(400)]
    policy = policy_of("rendezvous")
    before = {key: policy.choose(Query(key), four) for key in keys}
    for gone in four:
        left = [each for each in four if each is not gone]
        moved = [
            key
            for key in keys
            if before[key] != gone.name and policy.choose(Query(key), left) != before[key]
        ]
        expect(
            len(moved),
            0,
            call=f"keys of other replicas that move when {gone.name} leaves, of 400",
            cause="a hash modulo the number of replicas moves nearly all: every cache is cold then",
        )
    more = [*four, ReplicaLoad("e")]
    after = {key: policy.choose(Query(key), more) for key in keys}
    between = [key for key in keys if after[key] not in ("e", before[key])]
    share = sum(after[key] == "e" for key in keys)
    expect(
        [len(between), 40 <= share <= 130],
        [0, True],
        call="keys that move between the old replicas when e comes, and whether e takes 40 to 130 "
        "of 400",
        given={"e takes": share},
    )
    index = told(BlockIndex(), [("stored", "a", [1, 2])])
    policy = policy_of("rendezvous", index)
    by_prompt = {
        n: {policy.choose(Query("", (f"first {n}", m), 40), four) for m in range(4)}
        for n in range(60)
    }
    expect(
        [
            all(len(names) == 1 for names in by_prompt.values()),
            len(set().union(*by_prompt.values())),
        ],
        [True, 4],
        call="whether requests without a key go together if their first block is the same; over "
        "how many replicas 60 such prompts spread",
        cause="a query without a key has the first of its hashes as its key",
    )


def judge(policy, held, cases, cause):
    """All choices at once, each with replicas listed both ways; the first wrong one is shown."""
    found = [
        [policy.choose(query, each) for each in (some, some[::-1])] for query, some, _, _ in cases
    ]
    wanted = [[name] * 2 for _, _, name, _ in cases]
    wrong = next((n for n in range(len(cases)) if found[n] != wanted[n]), 0)
    query, some, _, why = cases[wrong]
    expect(
        found,
        wanted,
        call=f"prefix_aware.choose(query, replicas) in {len(cases)} cases, and with replicas "
        "listed the other way",
        given={
            f"case {wrong}": f"{query.num_tokens} tokens, hashes {list(query.hashes)} of "
            f"{query.block_size} tokens",
            "held": held,
            "(requests, tokens) open": {r.name: (r.requests, r.tokens) for r in some},
            "which is": why,
        },
        cause=cause,
    )


@pytest.mark.check(task=4, points=2, title="A prefix draws, until too much waits there")
def test_prefix_aware():
    index = told(BlockIndex(), [("stored", "a", [1, 2, 3, 4]), ("stored", "b", [1, 2])])
    query = Query("", (1, 2, 3, 4), num_tokens=70, block_size=16)
    large = Query("", (1, 2, 3, 4), num_tokens=350, block_size=80)
    cases = [
        (query, replicas(c=0, b=0, a=0), "a", "6, 38 and 70 tokens to compute"),
        (query, replicas(c=(0, 0), b=(0, 0), a=(0, 30)), "a", "costs of 36, 38 and 70"),
        (query, replicas(c=(0, 0), b=(0, 0), a=(0, 34)), "b", "costs of 40, 38 and 70"),
        (query, replicas(c=(0, 0), b=(0, 40), a=(0, 80)), "c", "costs of 86, 78 and 70"),
        (query, replicas(c=(0, 0), b=(0, 40), a=(2, 600)), "c", "a is far too busy"),
        (query, replicas(c=(5, 0), b=(5, 0), a=(5, 0)), "a", "as many open requests everywhere"),
        (query, replicas(c=0, b=0), "b", "a is not there"),
        (large, replicas(a=(0, 150), b=(0, 0), c=(0, 0)), "a", "costs of 180, 190 and 350"),
        (large, replicas(a=(0, 170), b=(0, 0), c=(0, 0)), "b", "costs of 200, 190 and 350"),
    ]
    judge(
        policy_of("prefix_aware", index),
        "a: 1 2 3 4, b: 1 2",
        cases,
        "tokens that it would have to compute, plus those that wait there; a block is as many "
        "tokens as the query says",
    )


@pytest.mark.check(task=4, points=1, title="Prompts that nobody has seen, and all of them")
def test_prefix_ties():
    index = told(BlockIndex(), [("stored", "a", [1, 2]), ("stored", "b", [1, 2, 7])])
    new, seen = Query("", (9,), 20), Query("", (1, 2), 32)
    cases = [
        (new, replicas(a=2, b=1, c=3), "b", "fewest open requests"),
        (new, replicas(b=0, a=0), "a", "all alike: the first by name"),
        (new, replicas(a=(0, 500), b=(1, 0)), "b", "500 tokens wait on a"),
        (new, replicas(a=(1, 0), b=(0, 70)), "a", "one open request is 64 tokens at most"),
        (seen, replicas(a=(5, 0), b=(0, 3), c=(9, 0)), "b", "five requests cost more than 3"),
        (seen, replicas(b=0, a=0), "a", "equal costs: the first by name"),
        (seen, replicas(c=0, b=0), "b", "31 tokens saved"),
        (seen, replicas(b=(0, 1), a=(0, 0)), "a", "one token waits on b"),
        (Query("", (1, 2, 3), 20), replicas(b=(0, 1), a=(0, 1)), "a", "all of it is cached"),
        (Query("", (7,), 1, 1), replicas(b=0, a=0), "a", "one token is computed in any case"),
        (Query("", (7, 9), 2, 1), replicas(b=0, a=0), "b", "costs of 2 and 1"),
        (Query(), replicas(b=1, a=3), "b", "an empty query"),
    ]
    judge(
        policy_of("prefix_aware", index),
        "a: 1 2, b: 1 2, and 7",
        cases,
        "the lowest cost; of equals, fewer open requests; then the first by name",
    )
    policy = policy_of("prefix_aware")
    idle = [
        sum(
            policy.choose(Query("", (), 9), replicas(**{one: (0, k), two: (1, 0)})) == one
            for k in range(90)
        )
        for one, two in ("ab", "ba")
    ]
    expect(
        [idle[1] - idle[0], 2 <= idle[0] <= 65],
        [0, True],
        call="how much more often b is chosen than a while 0 to 89 tokens wait there and one "
        "request is open on the other; whether a is chosen 2 to 65 times",
        given={"chosen": {"a": idle[0], "b": idle[1]}},
        cause="an open request costs 1 to 64 tokens; when as many wait, the one without it is "
        "chosen, whatever its name",
    )


@pytest.mark.check(task=4, points=2, title="The index is read as it is now")
def test_prefix_live():
    index = BlockIndex()
    policy = policy_of("prefix_aware", index)
    query, some = Query("", (1, 2, 3), 48), replicas(a=0, b=0, c=0)
    found = [policy.choose(query, some)]
    index.stored("c", [1, 2, 3])
    found.append(policy.choose(query, some))
    index.removed("c", [1])
    index.stored("b", [1])
    found.append(policy.choose(query, some))
    index.cleared("b")
    found.append(policy.choose(query, some))
    expect(
        [found, {name: index.size(name) for name in "abc"}],
        [["a", "c", "b", "a"], {"a": 0, "b": 0, "c": 2}],
        call="choices of prefix_aware while events come in, and the sizes of the index after them",
        given={"events": "stored c 1-3; removed c 1, stored b 1; cleared b"},
        cause="what was removed draws nobody, and a choice is no event: only replicas know what "
        "they store",
    )


def traffic(name, seed, shared=6, users=8, turns=6):
    """Conversations that begin with one of a few system prompts, on four replicas.

    Four requests are open at a time. Returns the share of blocks that were hits, and the busiest
    replica's share of the requests."""
    draw = random.Random(seed)
    index = BlockIndex()
    work = OpenWork(make_policy(name, index, seed), index)
    history = {u: tuple(f"system {u % 2} {n}" for n in range(shared)) for u in range(users)}
    hits = total = 0
    counts, opened = Counter(), []
    for turn in range(turns):
        for user in draw.sample(range(users), users):
            history[user] += tuple(f"{user} {turn} {n}" for n in range(2))
            blocks = history[user]
            request = work.on(Query(f"user {user}", blocks, 64 * len(blocks) + 5, 64), "abcd")
            where = request.__enter__()
            hits += index.match(blocks).get(where, 0)
            total += len(blocks)
            index.stored(where, blocks)
            counts[where] += 1
            opened.append(request)
            if len(opened) > 3:
                opened.pop(0).__exit__(None, None, None)
    for request in opened:
        request.__exit__(None, None, None)
    return hits / total, max(counts.values()) / sum(counts.values()), work


@pytest.mark.check(task=4, points=2, title="Hits and balance in traffic")
def test_traffic(seed):
    found = {name: [traffic(name, seed + n)[:2] for n in range(4)] for name in POLICIES}
    mean = {
        name: tuple(round(sum(run[at] for run in runs) / len(runs), 3) for at in (0, 1))
        for name, runs in found.items()
    }
    hits, busiest = mean["prefix_aware"]
    given = {"(hits, busiest replica's share), 4 runs each": mean}
    expect.that(
        hits >= 0.64 and hits > mean["round_robin"][0] + 0.08,
        "prefix_aware finds 64 % of the blocks, and 8 % of all more than round robin",
        observed=hits,
        call="hits of prefix_aware: 8 conversations of 6 turns, 2 system prompts, 4 replicas",
        given=given,
    )
    expect.that(
        busiest <= 0.48,
        "no replica answers more than 48 % of the requests",
        observed=busiest,
        call="the busiest replica's share under prefix_aware",
        given=given,
        cause="who follows the prefix alone sends all to the replica that was warm first",
    )
    expect(
        mean["round_robin"][1],
        0.25,
        call="the busiest replica's share under round_robin",
        given=given,
    )


@pytest.mark.check(task=4, points=2, title="Any replicas, in any order (random)", stress=True)
def test_policies_random(seed):
    draw = random.Random(seed)
    index = BlockIndex()
    policies = {name: make_policy(name, index, seed) for name in POLICIES}
    twins = {name: make_policy(name, index, seed) for name in POLICIES}
    for step in range(150):
        names = draw.sample([f"r{n}" for n in range(9)], draw.randint(1, 6))
        some = [ReplicaLoad(n, draw.randrange(4), draw.randrange(3) * 40) for n in names]
        blocks = tuple(draw.randrange(5) for _ in range(draw.randrange(4)))
        query = Query(draw.choice(("", "Mia", "Tom", str(step))), blocks, 16 * len(blocks) + 3)
        getattr(index, draw.choice(("stored", "stored", "removed")))(draw.choice(names), blocks)
        given = {"query": query, "open": {r.name: (r.requests, r.tokens) for r in some}}
        for name, policy in policies.items():
            found = policy.choose(query, some)
            expect.that(
                found in names,
                "the choice is one of `replicas`",
                observed=found,
                call=f"{name}.choose(query, replicas)",
                given=given,
                cause="whoever was there a moment ago may be draining now",
            )
            expect(
                twins[name].choose(query, sorted(some, key=lambda r: r.name)),
                found,
                call=f"the choice of a second {name} of the same history, replicas by name",
                given=given,
                cause="the order in which replicas are listed changes no choice",
            )
        fewest = min(r.requests for r in some)
        expect(
            policies["least_loaded"].choose(query, some),
            min(r.name for r in some if r.requests == fewest),
            call="least_loaded.choose(query, replicas)",
            given=given,
        )
