"""Task 4: the next step is planned and launched before the tokens of this one are read."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from grader import expect
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.store import PagedStore
from nanovllm.performance.ahead_engine import AheadEngine
from nanovllm.performance.buffers import DecodeRow
from nanovllm.performance.frees import DeferredFrees
from nanovllm.performance.step_ahead import Flight, plan_ahead

CONFIG = ModelConfig("qwen3", 40, 8, 1, 2, 1, 8, 16, 64, qk_norm=True, eos_token_ids=(2,))


class Request:
    """What a plan names, of which only `limit` is asked."""

    def __init__(self, name, limit=99):
        self.name, self.limit = name, limit


class Store:
    """A store that gives every request its blocks, and has room for so many reservations."""

    def __init__(self, blocks, size=4, room=99):
        self.blocks, self.block_size, self.room, self.asked = blocks, size, room, []

    def block_ids(self, request):
        return self.blocks[request]

    def reserve(self, request, num_tokens):
        self.asked.append((request, num_tokens))
        self.room -= 1
        return self.room >= 0


def rows_of(found):
    return {r.name: [row.position, row.slot, row.source] for r, row in found.items()}


@pytest.mark.check(task=4, points=1, title="A row for each request that goes on")
def test_rows(seed):
    draw = random.Random(seed)
    requests = [Request(f"r{i}") for i in range(4)]
    blocks = {r: draw.sample(range(50), 9) for r in requests}
    store = Store(blocks)
    lengths = [1, 1, 20, draw.randrange(2, 9)]
    ends = [draw.randrange(length, 35) for length in lengths]
    chunks = tuple(
        Chunk(r, end - length, length, end)
        for r, end, length in zip(requests, ends, lengths, strict=True)
    )
    places = draw.sample(range(20), 4)
    expect(
        rows_of(plan_ahead(Plan(chunks), places, store)),
        {
            r.name: [end, blocks[r][end // 4] * 4 + end % 4, place]
            for r, end, place in zip(requests, ends, places, strict=True)
        },
        call="plan_ahead(plan of decodes and prompts, places, store): position, slot, source",
        given={"ends": ends, "lengths": lengths, "places": places},
        cause="the next token stands where the chunk ends; its id is at its place in sampled",
    )
    expect(
        sorted((r.name, n) for r, n in store.asked),
        sorted((r.name, length + 1) for r, length in zip(requests, lengths, strict=True)),
        call="what was reserved",
        cause="the plan's own tokens are not yet counted as stored: length + 1",
    )


@pytest.mark.check(task=4, points=1, title="Chunks that do not complete, and last tokens")
def test_who_goes_on():
    middle, last, beyond, ahead = (Request(n, 9) for n in ("middle", "last", "beyond", "ahead"))
    blocks = {r: [3, 1, 7] for r in (middle, last, beyond, ahead)}
    plan = Plan((
        Chunk(middle, 0, 4, 8),  # a part of a prompt
        Chunk(last, 8, 1, 9),  # draws its last token
        Chunk(ahead, 2, 6, 8),
        Chunk(beyond, 9, 1, 10),
    ))  # fmt: skip
    store = Store(blocks)
    expect(
        rows_of(plan_ahead(plan, [5, 0, 2], store)),
        {"ahead": [8, 28, 0]},
        call="plan_ahead of a part of a prompt, a last token, a whole prompt",
        cause="places are those of the chunks that complete, in order; a chunk that ends at limit "
        "draws its last token now",
    )
    expect([r.name for r, _ in store.asked], ["ahead"], call="reserved for", cause="it alone")


@pytest.mark.check(task=4, points=1, title="No room, no flight")
def test_no_room():
    requests = [Request(f"r{i}") for i in range(3)]
    store = Store({r: [0, 1] for r in requests}, room=2)
    plan = Plan(tuple(Chunk(r, 3, 1, 4) for r in requests))
    expect(
        plan_ahead(plan, [0, 1, 2], store) is None,
        True,
        call="plan_ahead is None, where there is room for two of three",
        cause="somebody will have to give way: nothing is launched ahead",
    )
    expect(not plan_ahead(Plan(()), [], store), True, call="plan_ahead of nothing", cause="no rows")


@pytest.mark.check(task=4, points=2, title="What of a flight counts")
def test_places():
    names = ("kept", "ended", "preempted", "admitted", "moved", "chunked", "also")
    requests = {n: Request(n) for n in names}
    blocks = {r: [2, 5] for r in requests.values()}
    blocks[requests["moved"]] = [9, 8]
    rows = {r: DecodeRow(5, 21, [2, 5], source=0) for r in requests.values()}
    chunks = [Chunk(requests[n], 5, 1, 6) for n in ("also", "admitted", "moved", "kept")]
    chunks.append(Chunk(requests["chunked"], 5, 2, 7))
    plan = Plan(
        tuple(chunks),
        admitted=(requests["admitted"],),
        preempted=(requests["preempted"],),
    )
    found = Flight(SimpleNamespace(), rows).places(plan, Store(blocks))
    expect(
        {r.name: place for r, place in found.items()},
        {"kept": 0, "also": 6},
        call="Flight.places(plan, store)",
        given={"rows": list(names), "chunks": [c.request.name for c in chunks]},
        cause="a row counts where the plan asks for one token in the slot that the row wrote, of a "
        "request that was neither admitted nor preempted; its place is its number in the flight",
    )


@pytest.mark.check(task=4, points=1, title="Another position of the same request")
def test_other_position():
    request = Request("r")
    flight = Flight(SimpleNamespace(), {request: DecodeRow(5, 21, [2, 5], source=0)})
    store = Store({request: [2, 5, 4]})
    for start in (4, 6):
        expect(
            flight.places(Plan((Chunk(request, start, 1, start + 1),)), store),
            {},
            call=f"places where the plan asks for position {start}, and the row has 5",
            cause="the flight computed another token",
        )


class Manager:
    """Who holds what, as `hold` and `drop` of lab 05's manager say."""

    def __init__(self):
        self.held = []

    def hold(self, block_ids, owner):
        for block in block_ids:
            if block < 0:
                raise ValueError("no such block")
            if (block, owner) in self.held:
                raise ValueError(f"{owner} holds block {block} already")
            self.held.append((block, owner))

    def drop(self, block_ids, owner):
        for block in block_ids:
            self.held.remove((block, owner))

    def pinned(self):
        return sorted({block for block, _ in self.held})


@pytest.mark.check(task=4, points=2, title="Blocks in flight are held until the flight lands")
def test_frees(seed):
    draw = random.Random(seed)
    manager, flying, steps = Manager(), {}, []
    frees = DeferredFrees(manager)
    for step in range(30):
        if flying and draw.random() < 0.45:
            launch = draw.choice(list(flying))
            del flying[launch]
            frees.landed(launch)
            steps.append(f"landed {launch}")
        else:
            launch = draw.choice([step, *list(flying)])
            blocks = draw.choices(range(8), k=draw.choice([0, 3, 3]))
            flying.setdefault(launch, set()).update(blocks)
            frees.launched(launch, iter(blocks))
            steps.append(f"launched {launch} {blocks}")
        expect(
            manager.pinned(),
            sorted(set().union(*flying.values())),
            call="blocks that are held",
            given={"steps": steps[-6:]},
            cause="a block is held until the last launch that uses it has landed",
        )
        expect(
            frees.in_flight, len(flying), call="in_flight", cause="launches that have not landed"
        )
    with pytest.raises(ValueError, match="no such block"):
        frees.launched("refused", [-1])
    frees.landed("never launched")
    frees.landed("refused")
    expect.that(
        frees.in_flight == len(flying),
        "a launch that was never told of lands quietly, "
        "and so does one whose blocks could not be held",
    )


@pytest.fixture(scope="module")
def model():
    return dummy_model(CONFIG, 3)


def run(engine, jobs, aborts=()):
    """Texts by request, the books checked after each step."""
    found, step = {}, 0
    while engine.has_unfinished or step < 12:
        for number, (arrival, prompt, params) in enumerate(jobs):
            if arrival == step:
                engine.add_request(prompt, params, seed=number, request_id=number)
        if step in aborts:
            engine.abort(aborts[step])
        for event in engine.step():
            if isinstance(event, Finished):
                found[event.request_id] = event.completion.token_ids
        engine.check()
        step += 1
    return found


def random_jobs(draw):
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.0, "stop_token_ids": [7, 11, 20, 31]},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 1.3},
    ]
    jobs = []
    for _ in range(8):
        prompt = [draw.randrange(3, 40) for _ in range(draw.randint(1, 12))]
        params = SamplingParams(max_tokens=draw.randint(3, 14), **draw.choice(kinds))
        jobs.append((draw.randrange(9), prompt, params))
    return jobs


@pytest.mark.check(task=4, points=2, title="The same texts, whatever comes and goes")
def test_engine(model, seed):
    draw = random.Random(seed)
    for blocks in (60, 13):
        jobs = random_jobs(draw)
        config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=draw.randint(7, 20))
        aborts = {draw.randrange(3, 9): draw.randrange(8)}
        wanted = run(Engine(model, config, store=PagedStore(CONFIG, 90, 4)), jobs)
        engine = AheadEngine(model, config, store=PagedStore(CONFIG, blocks, 4))
        found = run(engine, jobs, aborts)
        given_up = set(aborts.values())
        expect(
            {k: list(v) for k, v in found.items() if k not in given_up},
            {k: list(v) for k, v in wanted.items() if k not in given_up},
            call=f"texts of AheadEngine with {blocks} blocks, by your rows, graphs and flights",
            given={"seed": seed},
            cause="a flight whose guess was wrong is dropped, and nobody sees it",
        )


@pytest.mark.check(task=4, points=2, title="The host waits while the device works")
def test_waits(model):
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    jobs = [(0, [3 + i, 9], params) for i in range(3)]
    config = EngineConfig(max_num_seqs=4)
    counts = {}
    for ahead in (False, True):
        engine = AheadEngine(model, config, store=PagedStore(CONFIG, 60, 4), ahead=ahead)
        run(engine, jobs)
        counts[ahead] = replace(engine.flights)
    expect(
        [counts[False].waits, counts[False].idle_waits],
        [9, 9],
        call="waits and idle waits of nine steps, none planned ahead",
        cause="each step waits for its tokens with nothing behind them",
    )
    expect(
        [counts[True].waits, counts[True].idle_waits, counts[True].rows_launched],
        [9, 1, 24],
        call="the same, planned ahead, and rows launched ahead",
        cause="only the last step has nothing behind it; 8 more tokens of 3 requests are launched",
    )
    expect(
        counts[True].rows_taken, 24, call="rows taken", cause="every request went on: none is lost"
    )
