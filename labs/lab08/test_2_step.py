"""Task 2: the speculative step."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from grader import expect
from grader.course.paths import ROOT
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import NonFiniteLogitsError
from nanovllm.batching.events import Aborted, Failed, Preempted, Stepped
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import CountingStore, SimulatedSequence
from nanovllm.generation.events import Finished, Sampled, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.store import PagedStore
from nanovllm.speculative.guess_policy import FixedPolicy
from nanovllm.speculative.guessed_plan import GuessedChunk, Verified, at_places
from nanovllm.speculative.guessing_scheduler import SpeculativeScheduler
from nanovllm.speculative.proposer import Guesses
from nanovllm.speculative.verify import SpeculativeEngine, stands
from nanovllm.tokenization.tokenizer import Tokenizer

VOCAB, BLOCK, LENGTH = 23, 4, 64
CONFIG = ModelConfig("qwen3", VOCAB, 32, 1, 4, 2, 8, 48, LENGTH, qk_norm=True, eos_token_ids=(2,))


class Guessing(SpeculativeEngine, Engine):
    """An engine that guesses."""


class Scripted:
    """Guesses by a rule; notes what it was asked, and whom it was told to forget."""

    def __init__(self, rule):
        self.rule, self.notes = rule, []

    def propose(self, asks):
        self.notes.append(["propose", *((ask.request.number, ask.most) for ask in asks)])
        return [Guesses(tuple(self.rule(ask.request, ask.most)), "script") for ask in asks]

    def forget(self, request):
        self.notes.append(["forget", request.number])


class Wants:
    """A policy that wants what it was told to want; notes what it heard."""

    def __init__(self, *wanted):
        self.wanted, self.notes, self.gone, self.late = wanted, [], set(), []

    def lengths(self, requests, most, tokens):
        self.notes.append([[r.number for r in requests], list(most), tokens])
        return [*self.wanted, *[0] * len(requests)][: len(requests)]

    def judged(self, request, guesses, accepted):
        if request in self.gone:
            self.late.append(request.number)
        self.notes.append([request.number, list(guesses.token_ids), accepted])

    def forget(self, request):
        self.gone.add(request)


def sevens(request, most):
    return [7] * most


def shape(chunk):
    """Start, length, total and guesses."""
    guesses = list(chunk.guesses.token_ids) if isinstance(chunk, GuessedChunk) else None
    return [chunk.start, chunk.length, chunk.total, guesses]


@pytest.mark.check(task=2, points=1, title="The places of a chunk that guesses")
def test_places():
    request = Request(0, SimulatedSequence(0, 9, 9), 0.0, 17)
    shapes = ((Chunk(request, 8, 1, 9), (5, 6, 7)), (Chunk(request, 4, 5, 9), (5,)))
    for chunk, guesses in shapes:
        places = GuessedChunk.of(chunk, Guesses(guesses)).places
        expect(
            [[place.start, place.length, place.total] for place in places],
            [[chunk.start, chunk.length, 9], *([9 + i, 1, 10 + i] for i in range(len(guesses)))],
            call=f"start, length, total of the places of tokens {chunk.start} to 8 with "
            f"{len(guesses)} guesses behind",
            cause="the known tokens are one chunk, each guess is one; logits are wanted behind "
            "each, so each completes: its total is its end",
        )
        expect(
            [
                all(place.request is request for place in places),
                [isinstance(place, GuessedChunk) for place in places],
            ],
            [True, [False] * len(places)],
            call="whether the request of each place is the chunk's own, and whether it guesses "
            "itself",
        )


@pytest.mark.check(task=2, points=2, title="Each place is drawn with the guesses before it")
def test_at_places():
    params = SamplingParams(max_tokens=9, min_tokens=3, presence_penalty=1.0)
    requests = []
    for number, (prompt, output) in enumerate((([3, 4, 5], [6]), ([8, 9], []), ([3] * 8, []))):
        sequence = Sequence(prompt, params, max_model_len=40, seed=70 + number, eos_token_ids=(2,))
        sequence.output_token_ids += output
        requests.append(Request(number, sequence, 0.0, 12))
    decode = GuessedChunk.of(Chunk(requests[0], 3, 1, 4), Guesses((7, 5, 7)))
    part, prompt = Chunk(requests[2], 2, 3, 8), GuessedChunk.of(Chunk(requests[1], 0, 2, 2),
                                                              Guesses((4,)))  # fmt: skip
    plan = Plan((decode, part, prompt), (requests[1],), (requests[2],), 33)
    found = at_places(plan)
    rows = [chunk.request.sequence.row for chunk in found.chunks]
    expect(
        [[chunk.start, chunk.length, chunk.total] for chunk in found.chunks],
        [[3, 1, 4], [4, 1, 5], [5, 1, 6], [6, 1, 7], [2, 3, 8], [0, 2, 2], [2, 1, 3]],
        call="start, length, total of the chunks of at_places: a decode with 3 guesses, a part of "
        "a prompt, a whole prompt with 1 guess",
        cause="places stand where their chunk stood, in order",
    )
    expect(
        [list(row.output_token_ids) for row in rows],
        [[6], [6, 7], [6, 7, 5], [6, 7, 5, 7], [], [], [4]],
        call="the output that the sampler sees in each of these chunks",
        given={"output so far": [6], "guesses": [[7, 5, 7], [4]]},
        cause="place i has the first i guesses: penalties and min_tokens count them",
    )
    expect(
        [[row.seed, row.position, list(row.prompt_token_ids)] for row in rows],
        [
            *([70, 4 + i, [3, 4, 5]] for i in range(4)),
            [72, 8, [3] * 8],
            *([71, 2 + i, [8, 9]] for i in range(2)),
        ],
        call="seed, position and prompt in each",
        cause="each place has a key of its own: (seed, position)",
    )
    expect(
        [
            all(row.params is params and row.eos_token_ids == (2,) for row in rows),
            found.chunks[0].request is requests[0],
            found.chunks[5].request is requests[1],
            found.chunks[4] is part,
            len({id(chunk.request) for chunk in found.chunks}),
        ],
        [True, True, True, True, 7],
        call="whether all rows have the request's parameters, whether the first places are of the "
        "requests themselves (two), whether the other chunk is the same; different requests",
        cause="draw gives one row to each request that it sees",
    )
    expect(
        [found.budget, found.admitted, found.preempted, requests[0].sequence.output_token_ids],
        [33, (requests[1],), (requests[2],), [6]],
        call="budget, admitted, preempted of at_places, and the output of the first request "
        "afterwards",
        cause="it is the same plan, and nothing happens to the requests",
    )


@pytest.mark.check(task=2, points=2, title="What stands: up to the first guess that fell")
def test_stands():
    def verified(guesses, drawn):
        found = stands(guesses, [Sampled(token) for token in drawn])
        return [[token.token_id for token in found.drawn], found.accepted]

    cases = [
        ((5, 6, 7), (5, 6, 7, 8)),
        ((5, 6, 7), (5, 6, 9, 8)),
        ((5, 6, 7), (9, 6, 7, 8)),
        ((5, 6, 7), (5, 9, 7, 8)),
        ((5,), (5, 5)),
        ((5,), (6, 5)),
    ]
    expect(
        [verified(*case) for case in cases],
        [[[5, 6, 7, 8], 3], [[5, 6, 9], 2], [[9], 0], [[5, 9], 1], [[5, 5], 1], [[6], 0]],
        call="[tokens, accepted] of guesses 5 6 7 where 5 6 7 8, 5 6 9 8, 9 6 7 8, 5 9 7 8 are "
        "drawn; of guess 5 where 5 5, 6 5 are drawn",
        cause="behind a guess that fell, nothing was drawn in the right place; the last token is "
        "always a draw of the target",
    )
    broken = NonFiniteLogitsError("No token can be drawn.")
    cases = [
        ((5, 6), (Sampled(5), broken, Sampled(7))),
        ((5, 6), (Sampled(9), broken, Sampled(7))),
        ((5, 6), (broken, Sampled(6), Sampled(7))),
        ((5, 6), (Sampled(5), Sampled(6), broken)),
    ]
    found = [stands(*case) for case in cases]
    names = [[getattr(one, "token_id", "error") for one in verified.drawn] for verified in found]
    expect(
        [names, [verified.accepted for verified in found]],
        [[[5, "error"], [9], ["error"], [5, 6, "error"]], [1, 0, 0, 2]],
        call="tokens, and accepted, of guesses 5 6 where a draw is an error: the second, behind a "
        "guess that stands and one that fell, the first, the last",
        cause="an error in a place that is reached is its outcome; in one that is not, nothing",
    )
    drawn = [Sampled(5, {5: "its own"}), Sampled(8, {8: "its own"})]
    expect(
        [token is one for token, one in zip(stands((5,), drawn).drawn, drawn, strict=True)],
        [True, True],
        call="whether the tokens are the draws themselves, with their log-probabilities",
    )


class Inner:
    """A scheduler that only has a store and a batch."""

    def __init__(self, store, running):
        self.store, self.running, self.clock = store, running, lambda: 0.0


class Blocks(CountingStore):
    """Places come in blocks of 4; only they are counted."""

    block_size = 4

    def block_ids(self, request):
        return range(self.reserved[request] // 4)

    def reserve(self, request, num_tokens):
        end = request.num_computed_tokens + num_tokens
        return super().reserve(request, -(-end // 4) * 4 - request.num_computed_tokens)


def chunks_of(store, *shapes):
    """A request for each (start, length, total, limit), in the store; their chunks."""
    chunks = []
    for number, (start, length, total, limit) in enumerate(shapes):
        request = Request(number, SimulatedSequence(number, total, 99), 0.0, limit)
        store.admit(request)
        store.reserve(request, start + length)
        request.num_computed_tokens = start
        chunks.append(Chunk(request, start, length, total))
    return tuple(chunks)


def scheduler_of(store, chunks, policy, rule=sevens, **settings):
    inner = Inner(store, [chunk.request for chunk in chunks])
    proposer = Scripted(rule)
    return SpeculativeScheduler(inner, proposer, policy, VOCAB, **settings), proposer


# a decode; a part of a prompt; the rest of one, with room for one more token; a last token
SHAPES = ((6, 1, 7, 20), (0, 5, 30, 40), (2, 3, 5, 6), (8, 1, 9, 9))


@pytest.mark.check(task=2, points=3, title="Who may guess, and how many: four limits")
def test_limits():
    seen = []
    for budget, max_chunk, wanted in (
        (30, None, (3, 4, 2)),
        (30, 5, (9, 9, 9)),
        (30, 3, (2, 1, 0)),
        (12, None, (9, 9, 9)),
        (30, None, (0, 1, 0)),
        (30, None, (-1, 0, 5)),
        (10, None, (4, 4, 4)),
    ):
        store = CountingStore(500)
        chunks = chunks_of(store, *SHAPES)
        policy = Wants(*wanted)
        scheduler, proposer = scheduler_of(store, chunks, policy, max_chunk=max_chunk)
        plan = scheduler.lengthen(Plan(chunks, budget=budget))
        seen.append([policy.notes, proposer.notes, [shape(chunk) for chunk in plan.chunks]])
    part, last = [0, 5, 30, None], [8, 1, 9, None]
    told = [
        [[0, 2, 3], most, 10]
        for most in ([13, 1, 0], [4, 1, 0], [2, 0, 0], [2, 1, 0], [13, 1, 0], [13, 1, 0], [0] * 3)
    ]
    asked = [[(0, 3), (2, 1)], [(0, 4), (2, 1)], [(0, 2)], [(0, 2), (2, 1)], [(2, 1)], [], []]
    counts = [(3, 1), (4, 1), (2, 0), (2, 0), (0, 1), (0, 0), (0, 0)]
    settings = [
        "budget 30, wanted 3 4 2",
        "budget 30, max_chunk 5, wanted 9 9 9",
        "budget 30, max_chunk 3, wanted 2 1 0",
        "budget 12, wanted 9 9 9",
        "budget 30, wanted 0 1 0",
        "budget 30, wanted -1 0 5",
        "budget 10, wanted 4 4 4",
    ]
    given = {
        "the plan": "0: token 6 of 7, limit 20; 1: tokens 0 to 4 of 30; 2: tokens 2 to 4 of 5, "
        "limit 6; 3: token 8 of 9, limit 9",
        "settings": settings,
    }
    expect(
        [notes[0] for notes, _, _ in seen],
        told,
        call="what the policy is told: requests, the most for each, tokens of the plan",
        given=given,
        cause="of the chunks that complete; the most is the least of what budget, limit and "
        "max_chunk leave",
    )
    expect(
        [notes for _, notes, _ in seen],
        [[["propose", *asks]] if asks else [] for asks in asked],
        call="what the proposer is told: (request, most)",
        given=given,
        cause="one call with all of the step, for those of whom more than 0 are wanted and allowed",
    )
    for (*_, found), (first, second), setting in zip(seen, counts, settings, strict=True):
        wanted = [
            [6, 1 + first, 7 + first, [7] * first or None],
            part,
            [2, 3 + second, 5 + second, [7] * second or None],
            last,
        ]
        expect(
            found,
            wanted,
            call=f"start, length, total and guesses of the plan's chunks: {setting}",
            given={"the plan": given["the plan"]},
            cause="a guess makes its chunk one token longer; without any it stays a Chunk; the "
            "first chunks of the plan have the budget first",
        )


@pytest.mark.check(task=2, points=1, title="What is left goes to the next; all else stays")
def test_the_rest():
    def at_most_two(request, most):
        return [7] * min(most, 2)

    store = CountingStore(500)
    chunks = chunks_of(store, *((6 + i, 1, 7 + i, 40) for i in range(4)))
    scheduler, _ = scheduler_of(store, chunks, FixedPolicy(6))
    found = scheduler.lengthen(Plan(chunks, budget=12)).chunks
    expect(
        [len(shape(chunk)[3] or ()) for chunk in found],
        [6, 2, 0, 0],
        call="how many guesses four decodes have that want 6 each, with a budget of 12",
        cause="the plan has spent 4 of the budget; what is left is for all of them together",
    )
    store = CountingStore(500)
    chunks = chunks_of(store, (6, 1, 7, 20), (3, 1, 4, 20), (0, 5, 30, 40), (2, 3, 5, 20))
    gone = [Request(number, SimulatedSequence(number, 3, 9), 0.0, 12) for number in (8, 9)]
    plan = Plan(chunks, (chunks[3].request,), tuple(gone), 15)
    scheduler, proposer = scheduler_of(store, chunks, FixedPolicy(4), at_most_two)
    found = scheduler.lengthen(plan)
    expect(
        [shape(chunk)[3] for chunk in found.chunks],
        [[7, 7], [7, 7], None, [7]],
        call="the guesses of four chunks, one of them a part of a prompt, where a budget of 15 "
        "leaves 5, 4 are wanted for each, and the proposer finds 2 for each",
        cause="what one does not use is there for the next, in the plan's order",
    )
    expect(
        [found.budget, found.admitted, found.preempted, found.chunks[2] is chunks[2]],
        [15, plan.admitted, plan.preempted, True],
        call="budget, admitted, preempted, and whether the chunk that does not complete is the "
        "same",
    )
    expect(
        [sorted(proposer.notes[:2]), proposer.notes[2:]],
        [[["forget", 8], ["forget", 9]], [["propose", (0, 4), (1, 4), (3, 4)]]],
        call="what the proposer is told where requests 8 and 9 were preempted",
        cause="they have left the batch, and may ask again at once; one call for all guesses",
    )

    def fails(request, most):
        raise RuntimeError("no guesses today")

    seen = []
    for rule in (fails, lambda request, most: [5, VOCAB, 6], lambda request, most: [5] * 50):
        store, said = CountingStore(500), []
        chunks = chunks_of(store, (6, 1, 7, 20))
        scheduler, _ = scheduler_of(store, chunks, FixedPolicy(4), rule, notify=said.append)
        [chunk] = scheduler.lengthen(Plan(chunks, budget=15)).chunks
        seen.append([shape(chunk), len(said)])
    expect(
        seen,
        [[[6, 1, 7, None], 1], [[6, 2, 8, [5]], 1], [[6, 5, 11, [5] * 4], 0]],
        call="the chunk, and how many sentences `notify` was told, where the proposer raises, "
        f"guesses 5 {VOCAB} 6 of {VOCAB} tokens, guesses too many",
        cause="bad guesses cost the guesses alone; `ask` knows how",
    )


@pytest.mark.check(task=2, points=1, title="Room is reserved for guesses, never taken from others")
def test_room():
    seen = []
    for places, shapes in (
        (100, ((5, 1, 6, 20), (3, 1, 4, 20))),
        (12, ((5, 1, 6, 20), (3, 1, 4, 20))),
        (20, ((5, 1, 6, 20), (3, 1, 4, 20))),
        (16, ((7, 1, 8, 20), (4, 3, 7, 20))),
        (100, ((7, 1, 8, 20), (4, 1, 5, 20))),
    ):
        store = Blocks(places)
        chunks = chunks_of(store, *shapes)
        free = store.free_tokens
        scheduler, _ = scheduler_of(store, chunks, FixedPolicy(4))
        found = scheduler.lengthen(Plan(chunks, budget=7 if places == 20 else 30)).chunks
        held = [store.reserved[chunk.request] for chunk in chunks]
        seen.append([[shape(chunk)[3] for chunk in found], held, free - store.free_tokens])
    four = [7] * 4
    expect(
        seen,
        [
            [[four, four], [12, 8], 8],
            [[[7, 7], None], [8, 4], 0],
            [[[7, 7], None], [8, 4], 0],
            [[None, [7]], [8, 8], 0],
            [[four, four], [12, 12], 8],
        ],
        call="the guesses of two decodes that want 4 each, in blocks of 4, the places that they "
        "hold then, and the places taken: tokens 5 and 3 with many places free, with none, with 8 "
        "free; token 7 and tokens 4 to 6 with none free; tokens 7 and 4 with many free",
        cause="a token and its guesses need room together; where blocks are scarce, guesses go "
        "into the rest of the request's own last block",
    )
    store = Blocks(16)
    chunks = chunks_of(store, (7, 1, 8, 20), (5, 1, 6, 20))
    scheduler, _ = scheduler_of(store, chunks, Wants(3, 3))
    found = scheduler.lengthen(Plan(chunks, budget=4)).chunks
    expect(
        [shape(chunk)[3] for chunk in found],
        [None, [7, 7]],
        call="the guesses where 2 may be guessed in all: the first has no room for any",
        cause="what one does not use is there for the next",
    )


class Noting(CountingStore):
    """Notes what is committed."""

    def __init__(self, total_tokens):
        super().__init__(total_tokens)
        self.committed = {}

    def commit(self, plan):
        for chunk in plan.chunks:
            places = self.committed.setdefault(chunk.request.sequence.request_id, [])
            places += range(chunk.start, chunk.end)


class Dry(Guessing):
    """An engine whose model always says 9."""

    def execute(self, plan):
        return torch.zeros(sum(chunk.completes for chunk in plan.chunks), VOCAB)

    def draw(self, plan, logits):
        return [Sampled(9) if chunk.completes else None for chunk in plan.chunks]


MODEL = dummy_model(CONFIG, 0)


def dry_engine(*jobs, budget=60):
    """An engine after its first step, its policy, and the plan of the second, without guesses."""
    policy, store = Wants(*[0] * 9), Noting(400)
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=budget)
    engine = Dry(MODEL, config, store=store, clock=ManualClock(),
                 proposer=Scripted(sevens), guess_policy=policy)  # fmt: skip
    for prompt, params in jobs:
        engine.add_request(prompt, params, seed=0)
    engine.step()
    policy.notes.clear()
    return engine, policy, engine.scheduler.inner.schedule()


def told(events):
    """Events in short, by request, in order."""
    found = {}
    for event in events:
        what = type(event).__name__
        if isinstance(event, TokenGenerated):
            what = event.token_id
        elif isinstance(event, Finished):
            what = event.completion.finish_reason
        found.setdefault(event.request_id, []).append(what)
    return found


def by_hand(engine, plan, guesses, drawn):
    """The plan with guesses behind its chunks, by request, and what came of each chunk."""
    chunks, outcomes = [], []
    for chunk in plan.chunks:
        number = chunk.request.sequence.request_id
        if number in guesses:
            chunk = GuessedChunk.of(chunk, Guesses(guesses[number]))
            engine.store.reserve(chunk.request, chunk.length)
        chunks.append(chunk)
        outcomes.append(drawn[number])
    return Plan(tuple(chunks), budget=60), outcomes


def tokens(*token_ids):
    return [Sampled(token) for token in token_ids]


def verified(*drawn):
    return Verified(tuple(Sampled(one) if isinstance(one, int) else one for one in drawn))


def greedy(count, **more):
    return SamplingParams(temperature=0, max_tokens=count, **more)


@pytest.mark.check(task=2, points=2, title="What stands is counted, committed, said and noted")
def test_update():
    prompts = ([3, 4, 5], [6], [7, 8], [3] * 11, [4] * 9)
    engine, policy, plan = dry_engine(*((p, greedy(9)) for p in prompts), budget=12)
    requests = {r.sequence.request_id: r for r in engine.scheduler.running}
    engine.store.committed.clear()
    guesses = {0: (9, 8, 9), 1: (5, 5), 3: (5, 6)}
    drawn = {0: verified(9, 8, 9, 1), 1: verified(4), 2: Sampled(5), 3: verified(5, 7), 4: None}
    given = {
        "tokens computed before": "0: 3 of 4; 1: 1 of 2; 2: 2 of 3; 3: 6 of 11; 4: 0 of 9",
        "guesses": "0: 9 8 9; 1: 5 5; 2: none; 3: 5 6, behind the rest of its prompt; 4: none",
        "outcomes": "0: 9 8 9 1; 1: 4; 2: 5; 3: 5 7; 4: only 4 of its 9 tokens are computed",
    }
    events = engine.update(*by_hand(engine, plan, guesses, drawn))
    expect(
        told(events),
        {0: [9, 8, 9, 1], 1: [4], 2: [5], 3: ["Prefilled", 5, 7]},
        call="the events of update, by request",
        given=given,
        cause="one event a token; the last token of a Verified is no guess, and counts as well",
    )
    expect(
        [[r.num_computed_tokens, r.num_tokens] for _, r in sorted(requests.items())],
        [[7, 8], [2, 3], [3, 4], [12, 13], [4, 9]],
        call="tokens computed, and all tokens, of each request then",
        given=given,
        cause="of what was computed, known tokens and the guesses that stand count; the newest "
        "token is still to be computed",
    )
    expect(
        dict(sorted(engine.store.committed.items())),
        {0: [3, 4, 5, 6], 1: [1], 2: [2], 3: [*range(6, 12)], 4: [0, 1, 2, 3]},
        call="the places that were committed to the store, in order",
        given=given,
        cause="behind the last guess that stands, K and V are of tokens that are not in the text",
    )
    expect(
        sorted(policy.notes),
        [[0, [9, 8, 9], 3], [1, [5, 5], 0], [3, [5, 6], 1]],
        call="what the policy is told: request, its guesses, how many stand",
        given=given,
        cause="once for each chunk that guessed",
    )
    engine.check()


@pytest.mark.check(task=2, points=1, title="Who ends in the middle of its guesses has ended")
def test_ends():
    broken = NonFiniteLogitsError("No token can be drawn.")
    jobs = [
        ([3, 4], greedy(9)),
        ([5], greedy(9, stop_token_ids=[8])),
        ([6], greedy(4)),
        ([7], greedy(9)),
        ([8], greedy(9)),
        ([9], greedy(9, ignore_eos=True)),
    ]
    engine, policy, plan = dry_engine(*jobs)
    engine.store.committed.clear()
    guesses = {0: (5, 2, 6), 1: (8, 8), 2: (5, 6, 7), 3: (5, 6), 4: (5,), 5: (2, 2)}
    drawn = {0: verified(5, 2, 6, 1), 1: verified(8, 8, 8), 2: verified(5, 6, 7, 7),
             3: verified(5, broken), 4: broken, 5: verified(2, 2, 2)}  # fmt: skip
    given = {
        "tokens before": "0: 3 (2 ends its text); 1: 2 (8 ends its text); 2: 2, at most 3 more; "
        "3: 2; 4: 2; 5: 2 (nothing ends its text)",
        "outcomes": "0: 5 2 6 1; 1: 8 8 8; 2: 5 6 7 7; 3: 5, then an error; 4: an error in place "
        "of a Verified; 5: 2 2 2",
    }
    events = engine.update(*by_hand(engine, plan, guesses, drawn))
    expect(
        told(events),
        {0: [5, 2, "stop"], 1: [8, "stop"], 2: [5, 6, 7, "length"], 3: [5, "Failed"],
         4: ["Failed"], 5: [2, 2, 2]},
        call="the events of update, by request",
        given=given,
        cause="whoever ends gets no further token, whatever stands behind; an error comes after "
        "the tokens before it",
    )  # fmt: skip
    expect(
        dict(sorted(engine.store.committed.items())),
        {0: [2, 3], 1: [1], 2: [1, 2, 3], 3: [1], 5: [1, 2, 3]},
        call="the places that were committed to the store",
        given=given,
        cause="a place is committed when the token behind it is drawn, and not in vain",
    )
    expect(
        sorted(policy.notes),
        [[0, [5, 2, 6], 3], [1, [8, 8], 2], [2, [5, 6, 7], 3], [3, [5, 6], 1], [4, [5], 0],
         [5, [2, 2], 2]],
        call="what the policy is told: request, its guesses, how many stand",
        given=given,
        cause="what stands is the Verified's to say, also where the text ends before; an error "
        "alone stands for none",
    )  # fmt: skip
    expect(
        [policy.late, [r.sequence.request_id for r in engine.scheduler.running]],
        [[], [5]],
        call="whose guesses the policy heard of after it was told to forget them; who is in the "
        "batch then",
        cause="`note` comes before the chunk is updated: then a request may end",
    )
    engine.check()


def spread_out(config, seed=3):
    """Random weights so far apart that texts vary; in float64, where sums in any order agree."""
    model, generator = dummy_model(config, seed), torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(std=0.4, generator=generator)
    return model.double()


def coming(texts, request, most):
    """What a request will say next, by what it said without guesses."""
    said = request.num_output_tokens
    key = request.sequence.request_id, request.sequence.index
    return list(texts.get(key, ())[said : said + most])


def rule_of(name, texts):
    """Guesses that are right, wrong, of both kinds, too many, or anything."""

    def rule(request, most):
        right = coming(texts, request, most)
        if name == "anything":
            return [(31 * request.num_tokens + 7 * i) % VOCAB for i in range(most - 1)]
        if name == "wrong":
            return [(token + 1) % VOCAB for token in right]
        if name == "mixed":
            places = range(request.num_tokens, request.num_tokens + most)
            pairs = zip(places, right, strict=False)
            return [token if place % 3 else (token + 1) % VOCAB for place, token in pairs]
        return [*right, *[7] * 50] if name == "too many" else right

    return rule


def engine_of(model, config, guesses=None, blocks=60, caching=True, **more):
    """An engine on a paged store; with `guesses` (k, rule) one that guesses."""
    torch.set_num_threads(1)
    store = PagedStore(model.config, blocks, BLOCK, torch.float64, enable_prefix_caching=caching)
    if guesses is None:
        return Engine(model, config, store=store, clock=ManualClock(), **more)
    count, rule = guesses
    return Guessing(model, config, store=store, clock=ManualClock(), **more,
                    proposer=Scripted(rule), guess_policy=FixedPolicy(count))  # fmt: skip


@dataclass
class Run:
    """What came of a run: by sample its completion, or its tokens where it was given up."""

    completions: dict = field(default_factory=dict)
    tokens: dict = field(default_factory=dict)
    steps: list = field(default_factory=list)
    preempted: int = 0
    wrong: str = ""  # the first thing that must never be

    def steps_of(self):
        """[tokens, drafts, accepted] of each chunk, by step."""
        return [[[c.length, c.drafts, c.accepted] for c in step.chunks] for step in self.steps]


def run(engine, jobs, aborts=()):
    """Jobs (arrival, prompt, params), and who is given up when, to the end; checked each step."""
    found = Run()
    for step in range(300):
        for number, (arrival, prompt, params) in enumerate(jobs):
            if arrival == step:
                engine.add_request(prompt, params, seed=number, request_id=number)
            if (number, step) in aborts:
                engine.abort(number)
        for event in engine.step():
            if isinstance(event, Stepped):
                found.steps.append(event)
            elif isinstance(event, Preempted):
                found.preempted += 1
            elif isinstance(event, Failed):
                found.wrong = found.wrong or f"request {event.request_id} failed: {event.error!r}"
            elif isinstance(event, TokenGenerated):
                key = event.request_id, event.index
                if key in found.completions:
                    found.wrong = f"request {key[0]} got a token after its end"
                found.tokens[key] = (*found.tokens.get(key, ()), event.token_id)
            elif isinstance(event, Finished):
                found.completions[event.request_id, event.index] = event.completion
            elif isinstance(event, Aborted):
                found.tokens.setdefault((event.request_id, event.index), ())
        engine.check()
        if step >= max(job[0] for job in jobs) and not engine.has_unfinished:
            if engine.store.free_tokens != engine.store.total_tokens:
                found.wrong = "blocks are held when everybody has ended"
            return found
    found.wrong = "requests have not ended after 300 steps"
    return found


PROMPTS = ([5, 6, 7], [9, 3, 4, 8, 11, 12, 13], [4], [7] * 12)


@pytest.mark.check(task=2, points=2, title="The same texts, in fewer steps")
def test_texts():
    model = spread_out(CONFIG)
    params = [
        SamplingParams(temperature=temperature, max_tokens=20, ignore_eos=True)
        for temperature in (0, 1.0, 0.7, 0)
    ]
    jobs = [(0, prompt, one) for prompt, one in zip(PROMPTS, params, strict=True)]
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=60)
    alone = run(engine_of(model, config), jobs)
    counts = []
    for name in ("right", "wrong", "mixed", "too many"):
        found = run(engine_of(model, config, (4, rule_of(name, alone.tokens))), jobs)
        expect(
            [found.wrong, found.tokens],
            [alone.wrong, alone.tokens],
            call=f"what went wrong, and the tokens of four requests with guesses that are {name}, "
            "against the same engine without guesses",
            given={"temperatures": [p.temperature for p in params]},
            cause="a guess that stands is the token that would have been drawn there",
        )
        runs = [chunk for step in found.steps_of() for chunk in step]
        counts.append([len(found.steps), *(sum(c[i] for c in runs) for i in (1, 2))])
    expect(
        [len(alone.steps), counts],
        [20, [[4, 64, 64], [20, 280, 0], [8, 104, 50], [4, 64, 64]]],
        call="steps without guesses; steps, guesses and accepted guesses with 4 guesses each that "
        "are right, wrong, wrong at every third place, right but too many",
        cause="20 tokens take 4 steps of 5, if all guesses stand",
    )


@pytest.mark.check(task=2, points=1, title="Every parameter means what it means without guesses")
def test_parameters():
    tokenizer = Tokenizer.from_pretrained(ROOT / "models" / "target")
    config = replace(CONFIG, vocab_size=2048)
    model = spread_out(config)
    common = {"max_tokens": 16, "logprobs": 2}
    params = [
        SamplingParams(temperature=0, repetition_penalty=1.5, frequency_penalty=1.0, **common),
        SamplingParams(temperature=1.0, presence_penalty=2.0, top_k=6, n=2, **common),
        SamplingParams(temperature=0.8, min_tokens=9, stop_token_ids=[*range(0, 2048, 2)],
                       top_p=0.9, **common),
        SamplingParams(temperature=0, logit_bias={7: 100.0, 8: 100.0}, frequency_penalty=0.5,
                       min_p=0.1, **common),
    ]  # fmt: skip
    prompts = ([5, 6, 7], [9, 3, 4, 8], [4, 4], [7, 8, 7, 8, 7])
    jobs = [(0, prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    settings = EngineConfig(max_num_seqs=8, max_num_batched_tokens=80)
    free = run(engine_of(model, settings, tokenizer=tokenizer), jobs)
    text = free.completions[0, 0].text
    stop = text[len(text) // 2 :][:3]
    jobs.append((0, prompts[0], replace(params[0], stop=[stop])))
    alone = run(engine_of(model, settings, tokenizer=tokenizer), jobs)
    for name in ("right", "mixed"):
        guesses = 3, rule_of(name, alone.tokens | {(4, 0): free.tokens[0, 0]})
        found = run(engine_of(model, settings, guesses, tokenizer=tokenizer), jobs)
        expect(
            [found.wrong, found.tokens],
            ["", alone.tokens],
            call="what went wrong, and the tokens of five requests with all kinds of parameters; "
            f"the guesses are {name}",
            cause="penalties, min_tokens and the key of a draw are those of its own place",
        )
        for key, completion in sorted(alone.completions.items()):
            mine = found.completions[key]
            expect(
                [mine.text, mine.finish_reason, mine.stop_reason],
                [completion.text, completion.finish_reason, completion.stop_reason],
                call=f"text, finish_reason, stop_reason of request {key[0]}; the guesses are "
                f"{name}",
                given={"parameters": params[key[0]] if key[0] < 4 else f"stop {stop!r}"},
            )
            flat = [[[t, p.logprob] for t, p in one.items()] for one in completion.logprobs]
            expect(
                [[[t, p.logprob] for t, p in one.items()] for one in mine.logprobs],
                flat,
                call=f"the log-probabilities of request {key[0]}; the guesses are {name}",
                atol=1e-5,
                cause="each token has those of its own row",
            )


@pytest.mark.check(
    task=2, points=1, title="Preempted, given up, read in parts, found in the prefix cache"
)
def test_company():
    model = spread_out(CONFIG)
    trunk = [(7 * i) % 19 + 3 for i in range(17)]
    params = [
        SamplingParams(temperature=i % 2, max_tokens=11, ignore_eos=i != 3, n=1 + i % 2)
        for i in range(5)
    ]
    jobs = [(3 * (i // 2), [*trunk[: 17 - 5 * (i % 2)], 3 + i], params[i]) for i in range(5)]
    settings = {
        "ample room": (EngineConfig(max_num_seqs=8), 60, (), "mixed"),
        "hardly any room": (EngineConfig(max_num_seqs=6), 11, (), "mixed"),
        "hardly any room, all wrong": (EngineConfig(max_num_seqs=6), 11, (), "wrong"),
        "chunks of 5, two at a time": (EngineConfig(max_num_seqs=2, max_chunk=5), 40, (), "mixed"),
        "given up": (EngineConfig(max_num_seqs=8), 60, ((1, 1), (2, 5), (4, 6)), "right"),
        "budget of 9": (EngineConfig(max_num_seqs=6, max_num_batched_tokens=9), 60, (), "right"),
    }
    for name, (config, blocks, aborts, kind) in settings.items():
        alone = run(engine_of(model, config, None, blocks), jobs)
        found = run(
            engine_of(model, config, (3, rule_of(kind, alone.tokens)), blocks), jobs, aborts
        )
        gone = {number for number, _ in aborts}
        want = {
            key: text[: len(found.tokens.get(key, ()))] if key[0] in gone else text
            for key, text in alone.tokens.items()
        }
        given = {"setting": name, "guesses": kind, "preempted": found.preempted}
        expect(
            [found.wrong, found.tokens],
            ["", want],
            call="what went wrong, and the tokens of five requests (two of them with two "
            "samples), against the engine without guesses",
            given=given,
            cause="texts depend on nothing but the request; who is given up keeps the "
            "beginning of its text",
        )
        widest = [max((c.length for c in step.chunks), default=0) for step in found.steps]
        expect.that(
            max(widest) <= (config.max_chunk or 99)
            and all(s.budget >= sum(c.length for c in s.chunks) for s in found.steps),
            "no chunk is longer than max_chunk, and no step computes more than its budget",
            observed=[max(widest), max(sum(c.length for c in s.chunks) for s in found.steps)],
            given=given,
        )
        if kind == "wrong":
            expect(
                [found.preempted, len(found.steps)],
                [alone.preempted, len(alone.steps)],
                call="preemptions and steps with guesses that are all wrong, and without guesses",
                given=given,
                cause="guesses take no room that others need",
            )


@dataclass(frozen=True)
class History:
    """Jobs (arrival, prompt, params), who is given up when, and the settings."""

    jobs: tuple
    aborts: tuple
    blocks: int
    caching: bool
    rule: str
    guesses: int
    seats: int
    budget: int
    max_chunk: int | None

    def __str__(self):
        jobs = "; ".join(
            f"{number}: step {arrival}, {len(prompt)} tokens + {params.max_tokens}, temperature "
            f"{params.temperature}" + (f", n={params.n}" if params.n > 1 else "")
            for number, (arrival, prompt, params) in enumerate(self.jobs)
        )
        gone = "".join(f"; {number} is given up before step {step}" for number, step in self.aborts)
        return (
            f"{self.guesses} guesses each, {self.rule}; {self.seats} at a time, budget "
            f"{self.budget}, max_chunk {self.max_chunk}, {self.blocks} blocks of {BLOCK}"
            f"{', prefix cache' if self.caching else ''}; jobs {jobs}{gone}"
        )

    def fails(self, model):
        """What differs from the engine without guesses, found and expected; None if nothing."""
        config = EngineConfig(
            max_num_seqs=self.seats, max_num_batched_tokens=self.budget, max_chunk=self.max_chunk
        )
        room = {"blocks": self.blocks, "caching": self.caching}
        alone = run(engine_of(model, config, **room), self.jobs)
        try:
            guesses = self.guesses, rule_of(self.rule, alone.tokens)
            found = run(engine_of(model, config, guesses, **room), self.jobs, self.aborts)
        except NotImplementedError:
            raise
        except Exception as error:
            return "what a step raises", f"{type(error).__name__}: {error}", "nothing"
        if found.wrong:
            return "what must never be", found.wrong, "nothing"
        gone = {number for number, _ in self.aborts}
        for key, text in sorted(alone.tokens.items()):
            mine = found.tokens.get(key, ())
            if mine != (text[: len(mine)] if key[0] in gone else text):
                return f"the tokens of request {key[0]}", list(mine), list(text)
            one, other = found.completions.get(key), alone.completions[key]
            if one and (one.finish_reason, one.stop_reason) != (
                other.finish_reason,
                other.stop_reason,
            ):
                return f"the end of request {key[0]}", one.finish_reason, other.finish_reason
        return None

    def smaller(self):
        """Histories with one thing less."""
        for number in range(len(self.jobs) if len(self.jobs) > 1 else 0):
            jobs = self.jobs[:number] + self.jobs[number + 1 :]
            aborts = tuple((n - (n > number), s) for n, s in self.aborts if n != number)
            yield replace(self, jobs=jobs, aborts=aborts)
        for number in range(len(self.aborts)):
            yield replace(self, aborts=self.aborts[:number] + self.aborts[number + 1 :])
        yield replace(self, blocks=60)
        yield replace(self, max_chunk=None)
        yield replace(self, caching=False)
        yield replace(self, guesses=max(self.guesses // 2, 1))
        for number, (arrival, prompt, params) in enumerate(self.jobs):
            fewer = replace(params, max_tokens=max(params.max_tokens // 2, params.min_tokens, 1))
            plain = greedy(params.max_tokens, ignore_eos=True)
            for one in (
                (0, prompt, params),
                (arrival, prompt[: len(prompt) // 2] or prompt, params),
                (arrival, prompt, fewer),
                (arrival, prompt, replace(params, n=1)),
                (arrival, prompt, plain),
            ):
                jobs = *self.jobs[:number], one, *self.jobs[number + 1 :]
                yield replace(self, jobs=jobs)


def random_history(rng):
    """Small enough to be seen through, with too little of everything now and then."""
    shared, jobs = rng.integers(3, VOCAB, size=20).tolist(), []
    for _ in range(int(rng.integers(1, 5))):
        own = rng.integers(3, VOCAB, size=int(rng.integers(1, 8))).tolist()
        most = int(rng.integers(1, 13))
        temperature = float(rng.choice([0.0, 0.7, 1.3]))
        params = SamplingParams(
            temperature=temperature,
            max_tokens=most,
            n=int(rng.choice([1, 1, 2])) if temperature else 1,
            ignore_eos=bool(rng.random() < 0.5),
            min_tokens=int(rng.integers(0, most + 1)) if rng.random() < 0.3 else 0,
            repetition_penalty=float(rng.choice([1.0, 1.4])),
            frequency_penalty=float(rng.choice([0.0, 0.6])),
            stop_token_ids=[int(rng.integers(3, VOCAB))] if rng.random() < 0.3 else [],
        )
        head = shared[: int(rng.choice([0, 8, 13]))]
        jobs.append((int(rng.integers(0, 5)), [*head, *own], params))
    aborts = ((int(rng.integers(len(jobs))), int(rng.integers(1, 8))),)
    return History(
        tuple(jobs),
        aborts if rng.random() < 0.3 else (),
        int(rng.choice([12, 14, 60])),
        bool(rng.random() < 0.6),
        str(rng.choice(["right", "mixed", "mixed", "wrong", "too many", "anything"])),
        int(rng.integers(1, 6)),
        int(rng.integers(2, 7)),
        int(rng.choice([7, 14, 60])),
        [None, None, 3][int(rng.integers(3))],
    )


def shrunk(history, model):
    """A history that fails and has nothing to spare, as far as one look at each part tells."""
    for smaller in history.smaller():
        if smaller != history and smaller.fails(model):
            return shrunk(smaller, model)
    return history


@pytest.mark.check(
    task=2, points=1, title="Random histories beside the engine without guesses", stress=True
)
def test_random(rng):
    model = spread_out(CONFIG)
    for _ in range(6):
        history = random_history(rng)
        differs = history.fails(model)
        if differs:
            history = shrunk(history, model)
            differs = history.fails(model)
        what, found, expected = differs or ("what differs", "nothing", "nothing")
        expect(
            found,
            expected,
            call=f"{what}, beside the engine without guesses, in the smallest history found that "
            "fails",
            given={"history": "\n" + "\n".join(str(history).split("; "))},
            cause="an event a token, and no trace of the guesses that fell",
        )
