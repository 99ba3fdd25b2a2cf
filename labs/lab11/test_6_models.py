"""Task 6: several models under one budget."""

import random

import pytest

from grader import expect
from nanovllm.cluster.errors import ClusterError
from nanovllm.cluster.model_pool import ModelPool
from nanovllm.cluster.model_specs import BudgetError, ModelSpec, prefix_salt

A, B, C, D = ModelSpec("a", 4), ModelSpec("b", 3), ModelSpec("c", 3), ModelSpec("d", 6)
PINNED = ModelSpec("p", 4, pinned=True)


class Disk:
    """Loads and unloads, and notes it; fails for the models named in `broken`."""

    def __init__(self):
        self.log, self.broken = [], set()

    def load(self, spec):
        self.log.append(f"load {spec.name}")
        if spec.name in self.broken:
            raise OSError(f"{spec.name} cannot be read")
        return [spec.name]

    def unload(self, spec, loaded):
        self.log.append(f"unload {spec.name} {loaded}")

    def since(self):
        log, self.log = self.log, []
        return log


def a_pool(budget, *specs):
    disk = Disk()
    return ModelPool(budget, list(specs), disk.load, disk.unload), disk


def use(pool, *names):
    for name in dict.fromkeys(names):
        pool.acquire(name)
        pool.release(name)


@pytest.mark.check(task=6, points=1, title="Loaded once, by any of its names")
def test_names():
    pool, disk = a_pool(10, A, ModelSpec("b", 3, aliases=("best", "B")))
    first, second, third = pool.acquire("best"), pool.acquire("b"), pool.acquire("B")
    expect(
        [first, first is second is third, disk.since(), pool.resident, pool.used],
        [["b"], True, ["load b"], ["b"], 3],
        call="acquire('best'); whether acquire('b') and acquire('B') give the same; what was "
        "loaded; resident; used",
        cause="an alias is another name of one model: it is loaded once",
    )
    expect(
        [pool.resolve(name).name for name in ("a", "b", "best", "B")],
        ["a", "b", "b", "b"],
        call="names of resolve('a'), ('b'), ('best'), ('B')",
    )
    for what, action in (
        ("resolve('c')", lambda: pool.resolve("c")),
        ("acquire('c')", lambda: pool.acquire("c")),
        ("release('c')", lambda: pool.release("c")),
        ("release('a'), which nobody has acquired", lambda: pool.release("a")),
    ):
        expect.raises(ClusterError, action, call=what)
    for _ in range(3):
        pool.release("best")
    expect.raises(
        ClusterError,
        lambda: pool.release("b"),
        call="a fourth release of b, by any of its names, after three acquires",
    )
    for specs in ([A, ModelSpec("x", 1, aliases=("a",))], [D, D], [ModelSpec("huge", 11)]):
        expect.raises(
            ClusterError,
            lambda specs=specs: a_pool(10, *specs),
            call="ModelPool(10, specs, load, unload)",
            given={"specs": specs},
            cause="what by_name refuses is refused",
        )


@pytest.mark.check(task=6, points=1, title="The longest unused makes room, and no more than that")
def test_eviction():
    pool, disk = a_pool(10, A, B, C, D)
    use(pool, "a", "b", "c")
    seen = [(disk.since(), pool.resident, pool.used)]
    pool.acquire("a")
    seen.append((disk.since(), pool.resident, pool.used))
    pool.release("a")
    use(pool, "d")
    seen.append((disk.since(), pool.resident, pool.used))
    use(pool, "b")
    seen.append((disk.since(), pool.resident, pool.used))
    use(pool, "b")
    seen.append((disk.since(), pool.resident, pool.used))
    expect(
        seen,
        [
            (["load a", "load b", "load c"], ["a", "b", "c"], 10),
            ([], ["b", "c", "a"], 10),
            (["unload b ['b']", "unload c ['c']", "load d"], ["a", "d"], 10),
            (["unload a ['a']", "load b"], ["d", "b"], 9),
            ([], ["d", "b"], 9),
        ],
        call="what was loaded and unloaded, resident, used: after a, b, c were used, a was "
        "acquired, d was used, b was used, b was used again",
        given={"budget": 10, "bytes": {"a": 4, "b": 3, "c": 3, "d": 6}},
        cause="room is made before the load, of those without users the longest unused first, as "
        "many as needed",
    )
    pool, disk = a_pool(10, A, B, C)
    pool.acquire("a")
    pool.acquire("b")
    pool.release("b")
    pool.release("a")
    expect(
        pool.resident,
        ["b", "a"],
        call="resident after a and b were acquired, then b and a released",
        cause="a model is used when it is released, too: a long request has just ended there",
    )


@pytest.mark.check(task=6, points=1, title="Pinned, or in use")
def test_kept():
    pool, disk = a_pool(10, PINNED, A, B, D)
    use(pool, "p")
    pool.acquire("a")
    disk.since()
    error = expect.raises(
        BudgetError,
        lambda: pool.acquire("b"),
        call="acquire('b') of 3 bytes: p of 4 is pinned, a of 4 is in use, the budget is 10",
        cause="pinned models stay, and so does what answers somebody now",
    )
    expect(
        [isinstance(error, ClusterError), disk.since(), pool.resident, pool.used],
        [True, [], ["p", "a"], 8],
        call="what was loaded and unloaded by it, resident, used",
        cause="nothing changes",
    )
    pool.acquire("a")
    pool.release("a")
    expect.raises(
        BudgetError,
        lambda: pool.acquire("b"),
        call="acquire('b') when a was acquired twice and released once",
    )
    pool.release("a")
    expect(
        [pool.acquire("b"), disk.since(), pool.resident],
        [["b"], ["unload a ['a']", "load b"], ["p", "b"]],
        call="acquire('b') when nobody uses a any more; what was loaded; resident",
    )


@pytest.mark.check(task=6, points=1, title="In vain: nothing was unloaded, nothing is counted")
def test_in_vain():
    pool, disk = a_pool(10, PINNED, B, C, ModelSpec("e", 7))
    use(pool, "p", "b", "c")
    disk.since()
    expect.raises(
        BudgetError,
        lambda: pool.acquire("e"),
        call="acquire('e') of 7 bytes: p of 4 is pinned, b and c of 3 are idle, the budget is 10",
    )
    expect(
        [disk.since(), pool.resident, pool.used],
        [[], ["p", "b", "c"], 10],
        call="what was unloaded, resident, used",
        cause="who cannot be helped by it is no reason to unload others: look before you do",
    )
    pool, disk = a_pool(10, A, B)
    use(pool, "a")
    disk.broken.add("b")
    expect.raises(OSError, lambda: pool.acquire("b"), call="acquire('b') where load raises OSError")
    expect(
        [pool.resident, pool.used],
        [["a"], 4],
        call="resident and used after a load that failed",
        cause="the model is not there, and its bytes are free",
    )
    disk.broken.clear()
    disk.since()
    expect.raises(
        ClusterError, lambda: pool.release("b"), call="release('b') after a load that failed"
    )
    expect(
        [pool.acquire("b"), disk.since(), pool.used],
        [["b"], ["load b"], 7],
        call="acquire('b') when it can be read; what was loaded; used",
    )


@pytest.mark.check(task=6, points=1, title="Blocks of one model are not another's")
def test_salt():
    names = ["m", "ma", "mab", "m ", "m 1", "1", "", "m:a", "m\0", "0", "m0", "1 m", "2 ma"]
    salts = ["", "a", "ab", "b", " ", "1", ":a", "\0", "0", "1 ", "m", "ma "]
    for mark in ":|/\\ ,;-_\n\t#@.\0":
        names.append(f"m{mark}a")
        salts += [f"a{mark}b", mark]
    made = {}
    for name in dict.fromkeys(names):
        for salt in dict.fromkeys(salts):
            made.setdefault(prefix_salt(ModelSpec(name, 1), salt), []).append((name, salt))
    shared = [pairs for pairs in made.values() if len(pairs) > 1]
    expect(
        shared[:2],
        [],
        call="(model, salt) of requests that are different and have one prefix_salt",
        cause="put together, a name and a salt can look like another name and another salt; two "
        "users would read each other's blocks",
    )
    one, other = ModelSpec("m", 1), ModelSpec("m", 9, pinned=True, aliases=("best",))
    expect(
        prefix_salt(one, "u") == prefix_salt(other, "u"),
        True,
        call="whether prefix_salt is the same for one model whatever its aliases, and pins are",
        cause="the name makes it, so that requests by any alias find each other's blocks",
    )
    expect(
        prefix_salt(one) == prefix_salt(one, ""),
        True,
        call="prefix_salt(spec) == prefix_salt(spec, '')",
    )


def drawn(draw, length):
    kinds = ("acquire", "acquire", "release", "fail")
    return [(draw.choice(kinds), draw.choice("abcdp")) for _ in range(length)]


def beside_a_list(calls):
    """The first call after which a pool differs from a list of what is loaded, or None."""
    specs = {spec.name: spec for spec in (A, B, C, D, PINNED)}
    pool, disk = a_pool(11, *specs.values())
    there, users, story = [], dict.fromkeys(specs, 0), []
    for kind, name in calls:
        story.append(f"{kind} {name}")
        disk.broken = {name} if kind == "fail" else set()
        want, log, spec = None, [], specs[name]
        if kind == "release":
            want = None if users[name] else "ClusterError"
            if users[name]:
                users[name] -= 1
                there = [n for n in there if n != name] + [name]
        elif name in there:
            users[name] += 1
            there = [n for n in there if n != name] + [name]
        else:
            idle = [n for n in there if not users[n] and not specs[n].pinned]
            left = list(there)
            while idle and sum(specs[n].nbytes for n in left) + spec.nbytes > 11:
                log.append(f"unload {idle[0]} {[idle[0]]}")
                left.remove(idle.pop(0))
            if sum(specs[n].nbytes for n in left) + spec.nbytes > 11:
                want, log = "BudgetError", []
            elif kind == "fail":
                want, there, log = "OSError", left, [*log, f"load {name}"]
            else:
                there, log = [*left, name], [*log, f"load {name}"]
                users[name] += 1
        got = None
        try:
            pool.release(name) if kind == "release" else pool.acquire(name)
        except (ClusterError, OSError) as error:
            got = type(error).__name__
        found = (got, disk.since(), pool.resident, pool.used)
        wanted = (want, log, there, sum(specs[n].nbytes for n in there))
        if found != wanted:
            return story, f"{found}", f"expected {wanted}"
    return None


@pytest.mark.check(task=6, points=1, title="A pool beside a list (random)", stress=True)
def test_random(seed):
    draw = random.Random(seed)
    for _ in range(80):
        calls, at = drawn(draw, 30), 0
        while beside_a_list(calls) and at < len(calls):
            fewer = calls[:at] + calls[at + 1 :]
            calls, at = (fewer, 0) if beside_a_list(fewer) else (calls, at + 1)
        expect(
            beside_a_list(calls),
            None,
            call="the shortest history found in which a pool of 11 bytes differs from a list of "
            "what is loaded, and how: error, log, resident, used",
            given={"bytes": {"a": 4, "b": 3, "c": 3, "d": 6, "p (pinned)": 4}},
        )
