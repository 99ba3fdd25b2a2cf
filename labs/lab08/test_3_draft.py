"""Task 3: the draft model."""

from zlib import crc32

import pytest
import torch

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.request import Request
from nanovllm.generation.events import Sampled
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.rows import SamplingRow
from nanovllm.generation.sampling import sample
from nanovllm.generation.sequence import Sequence
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.manager import BlockManager
from nanovllm.paging.store import PagedStore
from nanovllm.speculative.draft_model import DraftModel
from nanovllm.speculative.proposer import Ask

CONFIG = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, eos_token_ids=(2,))


def request_of(number, prompt, output=(), index=0, **params):
    """A request of the target; tokens are said by adding to its sequence."""
    chosen = SamplingParams(**{"max_tokens": 99, **params})
    sequence = Sequence(prompt, chosen, max_model_len=200, seed=number + 5, eos_token_ids=(2,),
                        request_id=number, index=index)  # fmt: skip
    sequence.output_token_ids += output
    return Request(number, sequence, 0.0, 200)


def tokens_of(request):
    return request.token_ids(0, request.num_tokens)


def said(read):
    """The token that follows what was read: any other reading gives another one."""
    return crc32(repr(read).encode()) % 997


def kept(token, before):
    """What a forward leaves of a token that stands behind `before`."""
    return crc32(f"{token} {before}".encode())


def continued(tokens, count):
    """What the stand-in says behind a text, computed afresh; what it guesses, if all is right."""
    read, guesses = [], []
    for token in tokens:
        read.append(kept(token, read[-1] if read else 0))
    for _ in range(count):
        guesses.append(said(read))
        read.append(kept(guesses[-1], read[-1]))
    return guesses


class Draft:
    """An engine of a draft model, without the model.

    In each place of its memory lies a number, made from the token that was computed there and
    from what lay in the place before it. The next token is made from all the places of a request.
    So one wrong number anywhere gives another guess. `forwards`: the spans (start, end) of each.
    """

    def __init__(self, num_blocks=40, max_model_len=200, fails=(), **more):
        self.store, self.max_model_len = BlockManager(num_blocks, 4, **more), max_model_len
        self.memory, self.forwards, self.fails = {}, [], fails

    def execute(self, plan):
        for move in self.store.transfers:
            for i in range(4):
                self.memory[move.new, i] = self.memory.get((move.old, i))
        self.store.transfers.clear()
        self.forwards.append(sorted((chunk.start, chunk.end) for chunk in plan.chunks))
        return [self.compute(chunk) for chunk in plan.chunks]

    def compute(self, chunk):
        blocks, owners = self.store.block_ids(chunk.request), self.store.owners()
        expect.that(
            chunk.end <= min(4 * len(blocks), self.max_model_len),
            f"every token has a place that was reserved, and stands before {self.max_model_len}",
            observed=f"token {chunk.end - 1}, with {4 * len(blocks)} places",
            call="execute(plan) of the draft's engine",
        )
        places = [(blocks[i // 4], i % 4) for i in range(chunk.end)]
        tokens = chunk.request.token_ids(chunk.start, chunk.end)
        for i, token in zip(range(chunk.start, chunk.end), tokens, strict=True):
            alone = len(owners[blocks[i // 4]]) == 1
            expect.that(alone, "nobody writes into a block of two owners", call="execute(plan)")
            before = self.memory.get(places[i - 1]) if i else 0
            self.memory[places[i]] = kept(token, before)
        return tokens[-1], [self.memory.get(place) for place in places]

    def draw(self, plan, found):
        drawn = [
            ValueError() if last in self.fails else Sampled(said(read)) for last, read in found
        ]
        return [one if chunk.completes else None
                for chunk, one in zip(plan.chunks, drawn, strict=True)]  # fmt: skip

    def spent(self):
        """Forwards and tokens computed since the last time."""
        counts = [len(self.forwards), sum(e - s for spans in self.forwards for s, e in spans)]
        self.forwards.clear()
        return counts


def proposed(draft, *asks):
    """The guesses for (request, most) of one call."""
    found = draft.propose([Ask(request, most) for request, most in asks])
    return [list(guesses.token_ids) for guesses in found]


def random_model(seed):
    """A small model of random weights, on one thread: for so few numbers more only wait."""
    torch.set_num_threads(1)
    return dummy_model(CONFIG, seed=seed)


def behind(model, tokens):
    """The logits behind a text, computed afresh."""
    ids = torch.tensor(tokens)
    hidden = model(ids, torch.arange(len(ids)), RecomputeAttend(model.config))
    return model.logits(hidden[-1:])


def paged(model, **options):
    return Engine(model, EngineConfig(**options), store=PagedStore(model.config, 40, 4))


@pytest.mark.check(task=3, points=2, title="The draft's own likeliest tokens, one after another")
def test_greedy():
    model = random_model(1)
    draft = DraftModel(paged(model))
    requests = [
        request_of(0, [5, 9, 13, 7, 21, 30, 8]),
        request_of(1, [40], [11, 6], temperature=1.0, logit_bias={7: 50.0}),
        request_of(2, list(range(3, 15)), temperature=0, min_tokens=20, repetition_penalty=1.9),
    ]
    most = [4, 1, 6]
    for _ in range(2):
        outputs = [list(request.sequence.output_token_ids) for request in requests]
        found = draft.propose([Ask(r, m) for r, m in zip(requests, most, strict=True)])
        expect(
            [request.sequence.output_token_ids for request in requests],
            outputs,
            call="the output tokens of the requests after `propose`",
            cause="a guess is not said yet: the target's request does not change",
        )
        want = []
        for request, count in zip(requests, most, strict=True):
            tokens = tokens_of(request)
            for _ in range(count):
                tokens.append(int(behind(model, tokens)[0].argmax()))
            want.append(tokens[-count:])
        expect(
            [list(guesses.token_ids) for guesses in found],
            want,
            call="the guesses for three requests, of which 4, 1 and 6 are wanted",
            given={"tokens": [tokens_of(request) for request in requests]},
            cause="each is the likeliest token behind all before it, whatever the request's "
            "parameters are",
        )
        expect([g.source for g in found], ["draft"] * 3, call="their source")
        requests[0].sequence.output_token_ids += [*want[0], 33]  # all guesses stand
        requests[1].sequence.output_token_ids += [17]  # none
        requests[2].sequence.output_token_ids += [*want[2][:3], 17]  # three of six


@pytest.mark.check(task=3, points=2, title="One forward a place, however many requests")
def test_forwards():
    story = []
    for count in (1, 3, 9):
        engine = Draft()
        draft = DraftModel(engine)
        requests = [request_of(i, [3] * i + [40 + i] * 5) for i in range(count)]
        found = proposed(draft, *((request, 4) for request in requests))
        story.append([draft.num_forwards, *engine.spent()])
        want = [continued(tokens_of(request), 4) for request in requests]
        expect(found, want, call=f"the guesses for {count} requests")
    known = [5, 5 + 6 + 7, sum(range(5, 14))]
    expect(
        story,
        [[4, 4, n + 3 * count] for n, count in zip(known, (1, 3, 9), strict=True)],
        call="num_forwards, forwards that were made, and tokens computed, for 4 guesses for each "
        "of 1, 3, 9 new requests",
        given={"tokens of the requests": known},
        cause="a forward has a chunk for each request; the last guess of a request is not computed",
    )
    requests = [request_of(10 + i, [60 + i] * (3 + 2 * i)) for i in range(3)]
    found = proposed(draft, *zip(requests, (2, 5, 1), strict=True))
    expect(
        [*engine.spent(), [len(guesses) for guesses in found], draft.num_forwards],
        [5, 15 + 1 + 4, [2, 5, 1], 9],
        call="forwards, tokens computed, number of guesses, and num_forwards in all, when 2, 5 and "
        "1 are wanted for three more requests of 3, 5 and 7 tokens",
        cause="who has its guesses takes no part in further forwards",
    )


@pytest.mark.check(task=3, points=2, title="What stands is not computed again, the rest is")
def test_catch_up():
    engine = Draft(enable_prefix_caching=False)
    draft = DraftModel(engine)
    one, other = request_of(0, [5, 6, 7, 8, 9, 10]), request_of(1, [3] * 9)
    proposed(draft, (other, 3))
    engine.spent()
    calls = [
        ("new, of 6 tokens; 4 guesses", 4, lambda g: [*g, 1], 6 + 3),
        ("all 4 stand, and a token more", 4, lambda g: [*g[:2], 2], 2 + 3),
        ("2 of 4 stand, and a token more", 4, lambda g: [3], 1 + 3),
        ("none stands", 4, lambda g: [g[0], 1000, g[2], 4, 4, *g[:3]], 1 + 3),
        ("8 tokens later, the first and third as guessed", 1, lambda g: [*g, 5], 7 + 0),
        ("1 of 1 stands, and a token more", 5, lambda g: g[:1], 2 + 4),
        ("the first of 5, and nothing more", 3, lambda g: [], 1 + 2),
        ("no new token at all", 2, lambda g: [], 1 + 1),
    ]
    for says, most, next_tokens, computed in calls:
        [found] = proposed(draft, (one, most))
        expect(
            found,
            continued(tokens_of(one), most),
            call=f"guesses for a request: {says}",
            given={"tokens": tokens_of(one)},
            cause="the last guess was never computed, and those that fell are not part of the text",
        )
        forwards, tokens = engine.spent()
        expect(
            [forwards, tokens],
            [most, computed],
            call=f"forwards and tokens computed for {most} guesses: {says}",
            cause="a guess that stands has its K and V already; the last one never had, nor has "
            "the token behind it",
        )
        one.sequence.output_token_ids += next_tokens(found)
    other.sequence.output_token_ids += [1]
    found = proposed(draft, (other, 2), (one, 2))
    expect(
        [found, engine.spent()],
        [[continued(tokens_of(r), 2) for r in (other, one)], [2, 2 + 2]],
        call="guesses for a request that was not asked for a while, and for the one above: "
        "guesses; forwards and tokens computed",
        cause="requests may come in any order, and each keeps its own",
    )


@pytest.mark.check(task=3, points=2, title="A guess that fell leaves no trace")
def test_rejected():
    for stood, others in [(stood, others) for stood in range(6) for others in (1, 3)]:
        engine = Draft()
        draft = DraftModel(engine)
        request = request_of(0, [5, 6, 7, 8, 9, 10])
        [guesses] = proposed(draft, (request, 6))
        path = tokens_of(request) + guesses
        request.sequence.output_token_ids += [*guesses[:stood], *[1] * others]
        [found] = proposed(draft, (request, 6))
        expect(
            found,
            continued(tokens_of(request), 6),
            call=f"the next 6 guesses when {stood} of 6 stood, and then {others} others came",
            cause="the K and V of a guess that fell lie where those of the text belong",
        )
        proposed(draft, (request, 1))
        draft.forget(request)
        text, right = tokens_of(request), 6 + stood
        same = [(path[: 7 + stood], right), (text, len(text) - 1), (path, right)]
        for number, (tokens, alike) in enumerate(same, 1):
            again, blocks = request_of(number, [*tokens, 2]), alike // 4
            engine.spent()
            [found] = proposed(draft, (again, 3))
            expect(
                found,
                continued(tokens_of(again), 3),
                call="guesses for a request that begins with the text, and the guesses, of one "
                "that has left",
                given={"blocks of": 4, "tokens": tokens_of(again), "guesses before": guesses,
                       "of which stood": stood},
                cause="the store keeps blocks that were committed, for requests that begin alike; "
                "a guess that may still fall must not be committed",
            )  # fmt: skip
            computed = engine.spent()[1]
            expect.that(
                computed <= again.num_tokens - 4 * blocks + 2,
                f"the first {4 * blocks} tokens are found in the store",
                observed=f"{computed} tokens computed",
                call=f"propose of 3 guesses for such a request, of {again.num_tokens} tokens",
                cause="all tokens of the text but the newest are committed by the next call, and "
                "what `admit` finds is not computed",
            )
            draft.forget(again)
        expect(engine.store.free_tokens, 160, call="free_tokens of the draft's store in the end")


@pytest.mark.check(task=3, points=2, title="Guesses drawn with the target's noise at each place")
def test_sampled():
    model = random_model(2)
    draft = DraftModel(paged(model), sampled=True)
    requests = [
        request_of(0, [5, 9, 13, 7, 21, 30, 8], temperature=1.0),
        request_of(1, [40], [11, 6], temperature=0.9, top_p=0.8, min_tokens=5, stop_token_ids=[7]),
        request_of(2, [3, 4, 3], [2, 8], temperature=1.4, top_k=9, repetition_penalty=1.7,
                   frequency_penalty=0.8, logit_bias={9: 2.0}),
        request_of(3, [12, 13], temperature=0, presence_penalty=1.5),
    ]  # fmt: skip
    most = [4, 5, 6, 5]
    for _ in range(2):
        found = proposed(draft, *zip(requests, most, strict=True))
        want = []
        for request, count in zip(requests, most, strict=True):
            sequence, guesses = request.sequence, []
            for _ in range(count):
                output = [*sequence.output_token_ids, *guesses]
                row = SamplingRow(
                    sequence.params, sequence.prompt_token_ids, output, sequence.seed, (2,)
                )
                [drawn] = sample(behind(model, tokens_of(request) + guesses), [row])
                guesses.append(drawn.token_id)
            want.append(guesses)
        expect(
            found,
            want,
            call="the guesses with sampled=True, for requests with parameters of their own",
            given={"tokens": [tokens_of(request) for request in requests]},
            cause="what lab 03's sampler draws from the draft's logits: by the target's "
            "parameters and seed, at the position of each guess, with the guesses before it said",
        )
        for request, guesses, stood in zip(requests, want, (4, 1, 3, 0), strict=True):
            request.sequence.output_token_ids += [*guesses[:stood], 20]


@pytest.mark.check(task=3, points=2, title="Without room no guesses, and the others go on")
def test_room():
    engine = Draft(num_blocks=6)
    draft = DraftModel(engine)
    a, big, b, c = (request_of(i, [i] * n) for i, n in enumerate((9, 40, 10, 5)))
    draft.forget(a)  # who was never seen
    found = proposed(draft, (a, 3), (big, 3), (b, 3), (c, 3))
    expect(
        found,
        [continued(tokens_of(a), 3), [], continued(tokens_of(b), 3), []],
        call="guesses for requests of 9, 40, 10 and 5 tokens, with 6 blocks of 4",
        cause="9 and 10 tokens need three blocks each; nothing is left for the last, and the "
        "second never fits",
    )
    for request in (b, big, b):
        draft.forget(request)
    expect(
        len(engine.store.owners()),
        3,
        call="blocks held in the draft's store when all but the first were forgotten, one twice",
        cause="forget gives back all room of a request, and may be called for anybody",
    )
    a.sequence.output_token_ids += [1]
    found = proposed(draft, (c, 3), (a, 2))
    expect(
        found,
        [continued(tokens_of(c), 3), continued(tokens_of(a), 2)],
        call="guesses for the fourth and the first then",
        cause="who got no room may come again",
    )
    draft.forget(c)
    draft.forget(a)
    d = request_of(7, [7] * 21)
    expect(
        [len(found) for found in proposed(draft, (d, 9))],
        [4],
        call="the number of guesses for a request of 21 tokens alone in 24 places, 9 wanted",
        cause="the last guess needs no place",
    )
    d.sequence.output_token_ids += [1, 2]
    found = proposed(draft, (d, 9), (c, 2))
    expect(found, [continued(tokens_of(d), 2), []], call="and of 23, beside one of 5: the guesses")
    d.sequence.output_token_ids += [1, 2]
    expect(proposed(draft, (d, 9), (c, 2)), [[], []], call="and of 25 tokens")
    draft.forget(d)
    expect(
        [engine.store.free_tokens, engine.store.owners()],
        [24, {}],
        call="free_tokens and owners() of the draft's store when all are forgotten",
    )
    engine.store.check()
    engine.spent()
    [found] = proposed(draft, (d, 1), (c, 2))[1:]
    expect(found, continued(tokens_of(c), 2), call="guesses for the one of 5 tokens then")


@pytest.mark.check(task=3, points=1, title="No token behind the draft's context, and no draw")
def test_context():
    engine = Draft(max_model_len=12, fails=[77])
    draft = DraftModel(engine)
    requests = [request_of(i, [20 + i] * n) for i, n in enumerate((8, 12, 13, 3))]
    bad = request_of(8, [4, 4, 77])
    found = proposed(draft, (bad, 4), *((request, 6) for request in requests))
    want = [continued(tokens_of(r), n) for r, n in zip(requests, (5, 1, 0, 6), strict=True)]
    expect(
        found,
        [[], *want],
        call="guesses, 6 wanted, by a draft whose max_model_len is 12: behind a token after which "
        "`draw` gives an error, and for requests of 8, 12, 13 and 3 tokens",
        cause="it can read 12 tokens, and guess the one behind them; a failed draw ends the "
        "guesses of its own request alone",
    )
    requests[0].sequence.output_token_ids += want[0][:3]
    found = proposed(draft, *((request, 6) for request in reversed(requests[:2])))
    expect(
        found,
        [continued(tokens_of(requests[1]), 1), continued(tokens_of(requests[0]), 2)],
        call="guesses for the ones of 12, and of 8 with three tokens more",
    )
    requests[0].sequence.output_token_ids += [1, 2]
    bad.sequence.output_token_ids += [5]
    expect(
        proposed(draft, (requests[0], 6), (bad, 2)),
        [[], continued(tokens_of(bad), 2)],
        call="guesses for the first, which has 13 tokens now, and for the one whose draw failed, "
        "with a token more",
    )


def play(calls, ample):
    """What `played` says, or the error that ended it."""
    story = []
    try:
        return played(calls, ample, story)
    except NotImplementedError:
        raise
    except Exception as error:
        return story, f"{type(error).__name__}: {error}"


def played(calls, ample, story):
    """What goes wrong first when these calls are made of a draft model, or None.

    ample: there is room for all, and no prefix cache: all that is wanted is guessed, and no token
    is computed twice. Else guesses may end early, but they are never wrong.
    """
    engine = Draft(*((200,) if ample else (9,)), max_model_len=40, enable_prefix_caching=not ample)
    draft, live, there, last = DraftModel(engine), [], {}, {}
    for kind, a, b in calls:
        story.append(f"{kind} {a} {b}")
        if kind == "arrive" and len(live) < 5:
            prompt = [(a >> i) & 1 for i in range(1 + b % 4 + 4 * (a % 3))]
            if b == 0 and live and not ample:  # one more sample of the newest request
                newest = live[-1].sequence
                number, prompt, index = newest.request_id, newest.prompt_token_ids, newest.index + 1
                live.append(request_of(number, prompt, index=index))
            else:
                live.append(request_of(len(story), prompt))
        elif kind == "preempt" and live:
            there.pop(live[a % len(live)], None)
            draft.forget(live[a % len(live)])
        elif kind == "end" and live:
            one = live.pop(a % len(live))
            there.pop(one, None)
            draft.forget(one)
        elif kind == "say" and live:
            one = live[a % len(live)]
            one.sequence.output_token_ids += [
                *last.get(one, [])[: b % 4],
                *[a % 2 * 1000] * (1 + b // 6),
            ]
            last.pop(one, None)
        elif kind == "ask" and live:
            asked = [live[(a + i) % len(live)] for i in range(1 + b % len(live))]
            most = [1 + (a + i) % 5 for i in range(len(asked))]
            before = draft.num_forwards
            found = proposed(draft, *zip(asked, most, strict=True))
            made, computed = engine.spent()
            if not made == draft.num_forwards - before <= max(most):
                return story, f"{made} forwards for {most} guesses, num_forwards {before} before"
            wanted = 0
            for one, count, guesses in zip(asked, most, found, strict=True):
                tokens, full = tokens_of(one), max(min(count, 41 - one.num_tokens), 0)
                right = continued(tokens, full)
                if guesses != (right if ample else right[: len(guesses)]):
                    return story, f"guesses {guesses} behind {tokens}, right are {right}"
                last[one], known = guesses, there.get(one, [])
                same = 0
                while same < min(len(known), len(tokens) - 1) and known[same] == tokens[same]:
                    same += 1
                if full:
                    there[one] = tokens + guesses[:-1]
                    wanted += len(there[one]) - same
            if ample and computed > wanted:
                return story, f"{computed} tokens computed, {wanted} were missing"
        engine.store.check()
    for one in live:
        draft.forget(one)
    if engine.store.owners() or engine.store.free_tokens != engine.store.total_tokens:
        return story, "in the end, with all forgotten, the store is not empty"
    return None


@pytest.mark.check(task=3, points=1, title="Random histories, each guess made afresh", stress=True)
def test_random(rng):
    for number in range(20):
        names = ["arrive", "ask", "say", "preempt", "end"]
        kinds = rng.choice(names, p=[0.2, 0.35, 0.3, 0.08, 0.07], size=40)
        calls = [(str(k), int(rng.integers(64)), int(rng.integers(8))) for k in kinds]
        ample, i = bool(number % 2), 0
        found = play(calls, ample)
        while found and i < len(calls):
            fewer = calls[:i] + calls[i + 1 :]
            again = play(fewer, ample)
            calls, found, i = (fewer, again, 0) if again else (calls, found, i + 1)
        expect(
            found[1] if found else None,
            None,
            call="what is wrong at the end of the shortest history found after which something is",
            given={"history": ", ".join(found[0]) if found else "",
                   "blocks of 4": 200 if ample else 9, "max_model_len": 40,
                   "say a b": "b % 4 of the last guesses and 1 + b // 6 other tokens"},
        )  # fmt: skip
