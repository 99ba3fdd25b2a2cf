"""Task 7: policy."""

import gc
import weakref
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from grader import expect
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.speculative.adaptive import AdaptivePolicy
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.guess_policy import FixedPolicy
from nanovllm.speculative.proposer import Guesses
from nanovllm.speculative.replay import RecordedText, gain, read_texts, replay

RECORD = Path(__file__).with_name("recorded.json")  # what 30 real prompts come to
MEMORY = {"base": 1.0, "token": 0.02, "draft": 0.01, "forward": 0.05}
BUNDLED = {"base": 0.24, "token": 0.048, "draft": 0.01, "forward": 0.06}
COMPUTE = {"base": 0.1, "token": 1.0, "draft": 0.1, "forward": 0.1}


def request_of(number):
    return Request(number, SimulatedSequence(number, 5, 9999), 0.0, 9999)


def guessed(count):
    return Guesses((7,) * count, "draft")


def run(policy, requests, steps, right, most=8):
    """Steps of a batch; of i's guesses in step s the first right(i, s) are right. What it wants."""
    wanted = []
    for step in range(steps):
        counts = policy.lengths(tuple(requests), (most,) * len(requests), len(requests))
        wanted.append(list(counts))
        for i, (request, count) in enumerate(zip(requests, counts, strict=True)):
            if count:
                policy.judged(request, guessed(count), min(count, right(i, step)))
    return wanted


def chain(rng, rate):
    """How many guesses stand, if each does at this rate."""
    count = 0
    while count < 16 and rng.random() < rate:
        count += 1
    return count


@pytest.mark.check(task=7, points=2, title="A number for each request, within its limit")
def test_limits():
    policy = AdaptivePolicy(3, Costs(1.0, 0.0, 0.0, 0.0))
    batch = [request_of(n) for n in range(4)]
    limits = (0, 1, 2, 8)
    for _ in range(20):
        counts = policy.lengths(batch, limits, 4)
        for request, count in zip(batch, counts, strict=True):
            if count:
                policy.judged(request, guessed(count), count)
    expect(
        list(policy.lengths(batch, limits, 4)),
        [0, 1, 2, 3],
        call="AdaptivePolicy(3).lengths of four requests with limits 0, 1, 2, 8, when guesses are "
        "always right and cost nothing",
        cause="each has its own limit, and `most` is that of all",
    )
    expect(
        [list(policy.lengths([], [], 0)), list(policy.lengths(batch[:1], [2], 0))],
        [[], [2]],
        call="lengths([], [], 0), and lengths of one request with limit 2 and tokens=0",
    )
    policy.forget(request_of(77))
    policy.judged(request_of(78), Guesses(), 0)
    policy.judged(batch[3], guessed(1), 1)
    expect(
        list(policy.lengths(batch[::-1], limits[::-1], 4)),
        [3, 2, 1, 0],
        call="lengths of the same requests in the other order, after forget and judged of requests "
        "never seen, and fewer guesses than were wanted",
    )
    expect(
        [
            len(AdaptivePolicy(4).lengths(batch, (4,) * 4, 4)),
            list(AdaptivePolicy(4).lengths([], (), 0)),
            list(AdaptivePolicy(4, Costs(0.0, 1.0)).lengths([], (), 0)),
        ],
        [4, [], []],
        call="AdaptivePolicy(4) without costs: numbers for four requests, and for none; and for "
        "none where base is 0",
    )


@pytest.mark.check(task=7, points=4, title="One rate: near the best fixed number")
def test_steady(rng):
    cases = [(0.9, 0.1, 0.05, 1, 3), (0.97, 0.3, 0.05, 1, 3), (0.8, 0.02, 0.4, 1, 3),
             (0.4, 0.02, 0.05, 1, 3), (0.1, 0.5, 0.05, 1, 3), (0.855, 0.02, 0.29, 8)]  # fmt: skip
    for rate, token, forward, *batches in cases:
        costs = Costs(1.0, token, 0.02, forward)
        texts = [RecordedText.of(rng.random(160) < rate) for _ in range(2 * max(batches))]
        for batch in batches:
            found = gain(texts, AdaptivePolicy(8, costs), costs, batch)
            best = max(gain(texts, FixedPolicy(k), costs, batch) for k in range(9))
            expect.that(
                found >= 0.85 * best,
                "it is at least 0.85 times as fast as the best fixed number",
                observed=[round(found, 3), round(best, 3)],
                call="gain(texts, AdaptivePolicy(8, costs), costs, batch), and the best of "
                "FixedPolicy(0) .. FixedPolicy(8)",
                given={"rate": rate, "batch": batch, "costs": costs_of(costs)},
                cause="tokens and costs of a step together say which number is best",
            )


def costs_of(costs):
    return {name: getattr(costs, name) for name in ("base", "token", "draft", "forward")}


@pytest.mark.check(task=7, points=3, title="In a large batch: those for whom it is worth it")
def test_some(rng):
    costs = Costs(1.0, 0.1, 0.0, 0.0)
    policy = AdaptivePolicy(8, costs)
    batch, good = [request_of(n) for n in range(16)], {0, 5, 6, 15}
    counts = dict.fromkeys(range(16), 0)
    for step in range(200):
        order = [batch[i] for i in rng.permutation(16)]
        wanted = policy.lengths(order, (8,) * 16, 16)
        for request, count in zip(order, wanted, strict=True):
            n = request.number
            if count:
                stood = min(chain(rng, 0.97 if n in good else 0.1), count)
                policy.judged(request, guessed(count), stood)
            if step >= 100:
                counts[n] += count
    shown = {
        "call": "the guesses of a batch of 16 in steps 100 to 199, its order changing",
        "given": {"costs": costs_of(costs)},
    }
    expect.that(
        all(counts[n] >= 100 for n in good),
        "each of the four whose guesses stand at rate 0.97 has one guess a step or more",
        observed={n: counts[n] for n in sorted(good)},
        **shown,
        cause="a guess costs 0.1 s; without guesses the step brings 16 tokens in 2.6 s",
    )
    others = [counts[n] for n in range(16) if n not in good]
    expect.that(
        sum(others) <= 12 * 12,  # one of them may have luck with its few trials
        "the twelve with rate 0.1 have at most 12 guesses each, on average",
        observed=sum(others) / 12,
        **shown,
        cause="a guess of theirs brings 0.1 tokens, and takes the time of 0.6",
    )
    expect.that(
        max(others) <= 25,
        "none of the twelve has more than 25",
        observed=max(others),
        **shown,
        cause="many guesses of one are lost time, too, even if the others have few",
    )


@pytest.mark.check(task=7, points=2, title="A forward of the draft model is for all")
def test_forward(rng):
    costs = Costs(1.0, 0.02, 0.0, 0.25)

    def guesses(good):
        """Of a batch of 8, from step 80 on."""
        batch = [request_of(n) for n in range(8)]
        rates = [0.75 if n < good else 0.02 for n in range(8)]
        policy = AdaptivePolicy(4, costs)
        wanted = run(policy, batch, 160, lambda i, s: chain(rng, rates[i]), most=4)
        return sum(sum(counts) for counts in wanted[80:])

    few = sum(guesses(good=1) for _ in range(4)) / 4  # luck with a few trials is no fault
    expect.that(
        few <= 64,
        "where one of eight is right, each guesses in one of ten steps at most, on average",
        observed=few,
        call="guesses of a batch of 8 in steps 80 to 159, the mean of four such batches; "
        "rate 0.75 for one, 0.02 for the others",
        given={"costs": costs_of(costs)},
        cause="one more token a step does not pay for a forward: 8 tokens take 1.16 s without",
    )
    many = guesses(good=8)
    expect.that(
        many >= 640,
        "where all eight are right at rate 0.75, at least one guess is made by each in each step",
        observed=many,
        call="guesses of a batch of 8 in steps 80 to 159; rate 0.75 for all",
        given={"costs": costs_of(costs)},
        cause="the draft model guesses for all requests in one forward",
    )


@pytest.mark.check(task=7, points=2, title="Guesses that fall end")
def test_falls():
    for costs in (Costs(1.0, 0.1, 0.05, 0.05), Costs(1.0, 0.2, 0.1, 0.1)):
        wanted = run(
            AdaptivePolicy(4, costs), [request_of(0)], 300, lambda i, s: 9 * (s < 100), most=4
        )
        counts = [count for [count] in wanted]
        expect.that(
            sum(counts[50:100]) >= 150,
            "of 50 steps in which all guesses stand, 3 guesses or more are made in each",
            observed=sum(counts[50:100]),
            call="guesses of one request in steps 50 to 99; in steps 0 to 99 all stand",
            given={"costs": costs_of(costs)},
        )
        expect.that(
            sum(counts[140:]) <= 16,
            "40 steps after the change, at most 16 guesses are made in 160 steps",
            observed=sum(counts[140:]),
            call="guesses of the same request in steps 140 to 299; from step 100 on none stands",
            given={"costs": costs_of(costs)},
            cause="what a request showed long ago says little about now",
        )


@pytest.mark.check(task=7, points=2, title="And come back")
def test_comes_back():
    for costs in (Costs(1.0, 0.1, 0.05, 0.05), Costs(1.0, 0.2, 0.1, 0.1)):
        for quiet in (60, 300):
            wanted = run(
                AdaptivePolicy(4, costs),
                [request_of(0)],
                quiet + 200,
                lambda i, s, quiet=quiet: 9 * (s >= quiet),
                most=4,
            )
            counts = [count for [count] in wanted]
            expect.that(
                sum(counts[-50:]) >= 150,
                "150 steps after the change, 3 guesses or more are made in each step",
                observed=sum(counts[-50:]),
                call=f"guesses of one request in steps {quiet + 150} to {quiet + 199}; before "
                f"step {quiet} none stands, then all do",
                given={"costs": costs_of(costs)},
                cause="who never guesses never learns that guesses are right again",
            )


@pytest.mark.check(task=7, points=2, title="A new request begins with what the others showed")
def test_new_request():
    for stood, costs in ((0, Costs(1.0, 0.1, 0.05, 0.05)), (9, Costs(1.0, 0.2, 0.1, 0.1))):
        policy = AdaptivePolicy(8, costs)
        for number in range(40):
            request = request_of(number)
            run(policy, [request], 6, lambda i, s, stood=stood: stood)
            policy.forget(request)
        first = [count for [count] in run(policy, [request_of(99)], 5, lambda i, s: stood)]  # noqa: B023
        given = {"costs": costs_of(costs)}
        if stood:
            expect.that(
                first[0] >= 3,
                "it begins with 3 guesses or more",
                observed=first[0],
                call="the first number of a new request, after 40 requests of 6 steps whose "
                "guesses all stood",
                given=given,
            )
        else:
            expect.that(
                sum(first) <= 1,
                "it has at most one guess in its first five steps",
                observed=sum(first),
                call="guesses of a new request, after 40 requests of 6 steps whose guesses all "
                "fell",
                given=given,
                cause="most answers are short: what has to be learnt anew for each is learnt "
                "too late",
            )


@pytest.mark.check(task=7, points=2, title="The next request with this number")
def test_forget():
    told = []
    for number in (3, 99):
        policy = AdaptivePolicy(4, Costs(1.0, 0.2, 0.05, 0.05))
        batch = [request_of(n) for n in range(8)]
        wanted = run(policy, batch, 60, lambda i, s: 0 if i == 3 else 9, most=4)
        expect.that(
            sum(counts[3] for counts in wanted[40:]) <= 4,
            "the one whose guesses fall has at most 4 in 20 steps",
            observed=sum(counts[3] for counts in wanted[40:]),
            call="the guesses of request 3 in steps 40 to 59, when those of seven others always "
            "stand",
        )
        policy.forget(batch[3])
        batch[3] = request_of(number)
        told.append(list(policy.lengths(batch, (4,) * 8, 8)))
    expect(
        told[0],
        told[1],
        call="lengths, when request 3 has been forgotten and another one with its number has come; "
        "expected: the same for a number that nobody had before",
        cause="a number may be used again; what the old one showed says nothing about the new one",
    )
    for request in batch:
        policy.forget(request)
        policy.forget(request)
    expect.that(
        policy.lengths([request_of(0)], (4,), 1)[0] >= 3,
        "a new request has 3 guesses or more, as all the others had",
        observed=policy.lengths([request_of(0)], (4,), 1)[0],
        call="lengths of a new request, when all eight have been forgotten, twice",
        cause="forget ends one request; what all of them showed stays",
    )


def reachable(thing):
    """How many objects can be reached from here, classes and modules aside."""
    seen, todo = {id(thing)}, [thing]
    while todo:
        for other in gc.get_referents(todo.pop()):
            if id(other) not in seen and not isinstance(other, (type, ModuleType, FunctionType)):
                seen.add(id(other))
                todo.append(other)
    return len(seen)


@pytest.mark.check(task=7, points=1, title="Nothing is left of 10,000 requests")
def test_memory():
    policy, size, last = AdaptivePolicy(4, Costs(**MEMORY)), {}, []
    for round_ in range(100):
        batch = [request_of(100 * round_ + n) for n in range(100)]
        for request, count in zip(batch, policy.lengths(batch, (4,) * 100, 100), strict=True):
            if count:
                policy.judged(request, guessed(count), request.number % (count + 1))
            policy.forget(request)
        if round_ in (19, 99):
            size[round_] = reachable(policy)
            last = [weakref.ref(request) for request in batch]
    del batch, request
    gc.collect()
    expect.that(
        size[99] <= size[19] + 100,
        "the policy holds no more objects after 10,000 requests than after 2,000, give or take 100",
        observed=f"{(size[99] - size[19]) / 8000:.0f} more for each request between",
        call="objects that can be reached from the policy after 2,000 and 10,000 requests",
        cause="a server runs for months",
    )
    expect(
        sum(ref() is not None for ref in last),
        0,
        call="requests among the last 100 that somebody still holds, when all were forgotten",
    )


@pytest.mark.check(task=7, points=2, title="Places never reached say nothing")
def test_unreached():
    for most in (2, 8):
        policy = AdaptivePolicy(8, Costs(1.0, 0.45, 0.0, 0.0))
        request = request_of(0)
        for _ in range(30):
            policy.judged(request, guessed(most), 1)
        wanted = [count for [count] in run(policy, [request], 5, lambda i, s: 1)]
        expect.that(
            min(wanted) >= 1,
            "it has a guess in each of the next five steps",
            observed={"guesses judged": most, "wanted": wanted},
            call=f"the numbers of a request of whose {most} guesses the first stood and the "
            "second fell, 30 times",
            given={"costs": "a step 1 s, 0.45 s a token"},
            cause="the places behind the second were never reached: they neither stood nor fell; "
            "and the first guess always pays",
        )


@pytest.mark.check(task=7, points=2, title="Costs that change are followed")
def test_costs_change():
    costs = Costs(**MEMORY)
    policy, request = AdaptivePolicy(8, costs), request_of(0)

    def guesses(steps):
        return sum(count for [count] in run(policy, [request], steps, lambda i, s: 9))

    cheap = guesses(60)
    vars(costs).update(COMPUTE)
    dear = guesses(60)
    vars(costs).update(MEMORY)
    again = guesses(20)
    expect.that(
        cheap >= 120 and again >= 40,
        "while guesses are cheap there are 2 a step or more",
        observed=[cheap, again],
        call="guesses in 60 steps with cheap guesses, and in 20 steps after 60 with dear ones",
        given={"guesses": "all right", "cheap": MEMORY, "dear": COMPUTE},
        cause="the same object tells other costs in each step; it is read in each step",
    )
    expect.that(
        dear <= 4,
        "while guesses are dear there are at most 4 in 60 steps",
        observed=dear,
        call="guesses in the 60 steps between",
        given={"guesses": "all right", "dear": COMPUTE},
        cause="a guess costs more than the token that it may save",
    )


TABLE = [  # as in the handout
    ("memory", MEMORY, "draft", 1, 1.64),
    ("memory", MEMORY, "draft", 4, 1.47),
    ("memory", MEMORY, "both", 4, 1.21),
    ("bundled", BUNDLED, "draft", 1, 1.11),
    ("bundled", BUNDLED, "both", 4, 0.97),
    ("compute", COMPUTE, "both", 1, 0.97),
    ("compute", COMPUTE, "both", 8, 0.97),
]


@pytest.mark.check(task=7, points=4, title="Recorded answers of the bundled models")
def test_recorded():
    draft, lookup = read_texts(RECORD, "draft"), read_texts(RECORD, "ngram")
    both = [text for pair in zip(draft, lookup, strict=True) for text in pair]
    for name, numbers, way, batch, least in TABLE:
        texts, costs = both if way == "both" else draft, Costs(**numbers)
        found = gain(texts, AdaptivePolicy(8, costs), costs, batch)
        expect.that(
            found >= least,
            f"it is at least {least} times as fast as without guesses",
            observed=round(found, 3),
            call=f"gain(texts, AdaptivePolicy(8, costs), costs, batch={batch}): the {name} row "
            f"of the handout's table, {way}, batch {batch}",
            given={"costs": numbers},
        )


def mixture(rng):
    """Costs, batch, most, and texts whose rates are their own and may change on the way."""
    token = float(10 ** rng.uniform(-2, 0.3))
    costs = {"base": 1.0, "token": token, "draft": float(rng.uniform(0, 0.05)),
             "forward": float(rng.uniform(0, 0.2))}  # fmt: skip
    texts = []
    for _ in range(int(rng.integers(4, 11))):
        rates = rng.choice([0.0, 0.2, 0.5, 0.8, 0.95, 1.0], size=2)
        texts.append(
            [bool(rng.random() < rate) for rate in rates for _ in range(int(rng.integers(3, 60)))]
        )
    return costs, int(rng.integers(1, 7)), int(rng.integers(1, 9)), texts


def trouble(costs, batch, most, texts):
    """What is wrong with the policy on these texts; None if nothing is."""
    recorded = [RecordedText.of(text, most=most) for text in texts]
    told, numbers = {}, Costs(**costs)

    class Watched(AdaptivePolicy):
        def lengths(self, requests, limits, tokens):
            counts = super().lengths(requests, limits, tokens)
            for request, count, limit in zip(requests, counts, limits, strict=True):
                if not 0 <= count <= min(limit, most) or count != int(count):
                    told.setdefault("limit", (request.number, count, limit))
            return counts

    found = replay(recorded, Watched(most, numbers), numbers, batch, most).seconds
    if told:
        number, count, limit = told["limit"]
        return f"request {number} has {count} guesses, but its limit is {limit}"
    fixed = [
        replay(recorded, FixedPolicy(k), numbers, batch, most).seconds for k in range(most + 1)
    ]
    best = min(fixed)
    room = 40 * (numbers.token + numbers.draft + numbers.forward)  # for what has to be learnt
    if found > 1.25 * best + room:
        k = fixed.index(best)
        return f"it takes {found:.1f} s, FixedPolicy({k}) {best:.1f} s"
    return None


@pytest.mark.check(
    task=7, points=2, title="Random mixtures, beside every fixed number", stress=True
)
def test_random(rng):
    for _ in range(12):
        costs, batch, most, texts = mixture(rng)
        found, i = trouble(costs, batch, most, texts), 0
        while found and i < len(texts):  # leave out the texts that are not needed to see it
            fewer = texts[:i] + texts[i + 1 :]
            again = fewer and trouble(costs, batch, most, fewer)
            texts, found, i = (fewer, again, 0) if again else (texts, found, i + 1)
        expect(
            found,
            None,
            call=f"replay of {len(texts)} texts, {batch} at a time, most {most}: "
            + "; ".join("".join(".x"[not one] for one in text) for text in texts),
            given={"costs": {name: round(value, 3) for name, value in costs.items()}},
            cause="a dot is a token whose guess is right; no number leaves its limits, and a "
            "policy takes at most 1.25 times as long as the best fixed number, and time to learn",
        )
