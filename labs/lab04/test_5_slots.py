"""Task 5: the slot store."""

import pytest
import torch

from grader import expect
from nanovllm.batching.errors import InvariantError
from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.batching.slot_store import SlotStore
from nanovllm.model.config import ModelConfig

# H 6, G 2: three query heads a key head. Layer 1 has a window of 3.
CONFIG = ModelConfig("mistral", 50, 32, 2, 6, 2, 8, 48, 64, windows=(None, 3))
CAPACITY = 12


def new_request(number, prompt=5, output=9):
    return Request(number, SimulatedSequence(number, prompt, output), 0.0, prompt + output - 1)


def plan_of(*chunks):
    """A plan of (request, start, length)."""
    return Plan(tuple(Chunk(r, start, length, start + length) for r, start, length in chunks))


def admitted(store, *requests):
    for request in requests:
        store.admit(request)
    return requests


class Twin:
    """What the store should answer: every request's k and v in lists of their own."""

    def __init__(self, store, generator, dtype=torch.float32):
        self.store, self.generator, self.dtype = store, generator, dtype
        self.kept = {}

    def random(self, *shape):
        return torch.randn(*shape, generator=self.generator).to(self.dtype)

    def step(self, *chunks):
        """Run a plan through store and twin, all layers; both results [L, T, H, D]."""
        plan = plan_of(*chunks)
        self.reserve(plan)
        attend = self.store.bind(plan)
        got, want = [], []
        for layer in range(CONFIG.num_layers):
            q = self.random(plan.num_tokens, CONFIG.num_heads, CONFIG.head_dim)
            k = self.random(plan.num_tokens, CONFIG.num_kv_heads, CONFIG.head_dim)
            v = self.random(plan.num_tokens, CONFIG.num_kv_heads, CONFIG.head_dim)
            got.append(attend(layer, q, k, v))
            want.append(self.answer(layer, plan, q, k, v))
        self.store.commit(plan)
        for chunk in plan.chunks:
            chunk.request.num_computed_tokens = chunk.end
        return torch.stack(got), torch.stack(want)

    def reserve(self, plan):
        """There is room for every chunk, up to the last place of its slot."""
        expect(
            [self.store.reserve(chunk.request, chunk.length) for chunk in plan.chunks],
            [True] * len(plan.chunks),
            call="reserve(request, n) for each chunk, with places enough",
            given={"chunks": [(c.request.number, c.start, c.length) for c in plan.chunks],
                   "places in a slot": CAPACITY},
            cause="the new tokens go behind the computed ones, up to the last place",
        )  # fmt: skip

    def answer(self, layer, plan, q, k, v):
        out, at = [], 0
        for chunk in plan.chunks:
            mine = slice(at, at + chunk.length)
            at += chunk.length
            old = self.kept.get((layer, chunk.request))
            pairs = (k[mine], v[mine])
            if old is not None:
                pairs = tuple(
                    torch.cat([a[: chunk.start], b]) for a, b in zip(old, pairs, strict=True)
                )
            self.kept[layer, chunk.request] = pairs
            out.append(self.attention(layer, q[mine], *pairs))
        return torch.cat(out)

    @staticmethod
    def attention(layer, q, k, v):
        """By torch, one head and one query at a time."""
        out = torch.empty_like(q)
        group, window = CONFIG.num_heads // CONFIG.num_kv_heads, CONFIG.window(layer)
        for t in range(len(q)):
            end = len(k) - len(q) + t + 1
            start = 0 if window is None else max(0, end - window)
            for head in range(q.shape[1]):
                keys, values = k[start:end, head // group], v[start:end, head // group]
                weights = (keys @ q[t, head] * q.shape[2] ** -0.5).softmax(dim=0)
                out[t, head] = weights @ values
        return out


@pytest.mark.check(task=5, points=1, title="A slot each, and back again")
def test_slots(generator):
    store = SlotStore(CONFIG, num_slots=3, capacity=CAPACITY)
    a, b, c, d = (new_request(i) for i in range(4))
    found = [store.admit(request) for request in (a, b, c)]
    expect(found, [0, 0, 0], call="admit of three requests", cause="none of their tokens are here")
    expect(
        [len({store.block_ids(r)[0] for r in (a, b, c)}), store.can_admit(d)],
        [3, False],
        call="different slots of three requests in a store of three, and can_admit of a fourth",
        cause="every request has a slot of its own",
    )
    store.block_ids(a).clear()
    expect(
        len(store.block_ids(a)), 1, call="length of block_ids after an earlier answer was emptied"
    )
    freed = store.block_ids(b)
    Twin(store, generator).step((b, 0, 5))
    store.release(b)
    expect(
        [store.can_admit(d), store.free_tokens],
        [True, 3 * CAPACITY],
        call="can_admit and free_tokens after one of three was released",
        cause="the slot is free, and it holds nobody's tokens",
    )
    store.admit(d)
    expect(
        [store.block_ids(d), store.can_admit(b), store.free_tokens],
        [freed, False, 3 * CAPACITY],
        call="the slot of the next request, can_admit of the one that left, and free_tokens",
    )
    store.check([a, c, d])
    expect.raises(
        InvariantError,
        lambda: store.check([a, d]),
        call="check of two requests, when a third has a slot as well",
        cause="exactly these requests must be in; a slot that nobody gives back is lost",
    )
    expect.raises(
        InvariantError,
        lambda: store.check([a, c, d, new_request(4)]),
        call="check of four requests, of which one has no slot",
        cause="exactly these requests must be in, each of them",
    )


@pytest.mark.check(task=5, points=2, title="Room to the last place, and committed tokens")
def test_room(generator):
    store = SlotStore(CONFIG, num_slots=2, capacity=CAPACITY)
    a, b, late = new_request(0), new_request(1), new_request(2)
    admitted(store, a)
    twin = Twin(store, generator)
    for computed, room in ((0, 12), (7, 5), (12, 0)):
        if computed:
            twin.step((a, a.num_computed_tokens, computed - a.num_computed_tokens))
        expect(
            [store.reserve(a, n) for n in (12, 13, 6, 5, 1)],
            [n <= room for n in (12, 13, 6, 5, 1)],
            call="reserve(request, n) for n in 12, 13, 6, 5, 1, one after another",
            given={"computed tokens of the request": computed, "places in its slot": CAPACITY},
            cause="the new tokens go behind the computed ones; asking again takes no more room",
        )
    store.release(a)
    admitted(store, b, late)
    twin.step((b, 0, 4), (late, 0, 1))
    twin.step((b, 4, 3))
    expect(
        [store.free_tokens, [store.fits(n) for n in (1, CAPACITY, CAPACITY + 1)]],
        [2 * CAPACITY - 8, [True, True, False]],
        call="free_tokens after commits of 4 and 3 tokens of one request and 1 of another, and "
        "whether requests of 1, 12 and 13 tokens fit",
        cause="a chunk's tokens add to those before it; a request must fit into one slot",
    )
    store.commit(plan_of((b, 7, 2)))
    expect(
        store.free_tokens,
        2 * CAPACITY - 10,
        call="free_tokens after a commit of 2 more tokens, before num_computed_tokens counts them",
        cause="what is committed is stored from then on",
    )


@pytest.mark.check(task=5, points=2, title="A chunk sees its own slot, up to its own end")
def test_chunks(generator):
    store = SlotStore(CONFIG, num_slots=4, capacity=CAPACITY)
    twin = Twin(store, generator)
    _, a, b = admitted(store, new_request(9), new_request(0), new_request(1))
    for number, chunks in enumerate((((a, 0, 4), (b, 0, 7)), ((b, 7, 2), (a, 4, 5)))):
        got, want = twin.step(*chunks)
        for layer in range(2):
            expect(
                got[layer],
                want[layer],
                call=f"attend of step {number + 1}, layer {layer}, "
                f"{[(r.number, start, n) for r, start, n in chunks]} [T, H, D]",
                given={"window": CONFIG.window(layer)},
                cause="a chunk attends to its own request's tokens, those of this step included",
            )


@pytest.mark.check(task=5, points=2, title="Decodes of ragged lengths, all in one call")
def test_decodes(generator):
    store = SlotStore(CONFIG, num_slots=5, capacity=CAPACITY)
    twin = Twin(store, generator)
    requests = admitted(store, *(new_request(i) for i in range(4)))
    lengths = (9, 0, 5, 3)
    twin.step(*((r, 0, n) for r, n in zip(requests, lengths, strict=True) if n))
    order = (2, 0, 3, 1)  # not that of the slots
    for _ in range(2):
        chunks = [(requests[i], requests[i].num_computed_tokens, 1) for i in order]
        got, want = twin.step(*chunks)
        for layer in range(2):
            expect(
                got[layer],
                want[layer],
                call=f"attend of four single tokens, layer {layer} [T, H, D]",
                given={"lengths": [start for _, start, _ in chunks],
                       "window": CONFIG.window(layer)},
                cause="each row sees its own places up to its position, its own token included",
            )  # fmt: skip


@pytest.mark.check(task=5, points=1, title="Mixed batches come back in the order of the plan")
def test_mixed(generator):
    store = SlotStore(CONFIG, num_slots=5, capacity=CAPACITY)
    twin = Twin(store, generator)
    a, b, c, d = admitted(store, *(new_request(i) for i in range(4)))
    twin.step((a, 0, 6), (b, 0, 2))
    got, want = twin.step((a, 6, 1), (c, 0, 3), (b, 2, 1), (d, 0, 4))
    expect(
        got,
        want,
        call="attend of (decode, chunk of 3, decode, chunk of 4), both layers [L, T, H, D]",
        cause="row t of the result belongs to token t of the plan",
    )
    half = torch.bfloat16
    store = SlotStore(CONFIG, 2, CAPACITY, half, "cpu")
    twin = Twin(store, generator, half)
    a, b = admitted(store, new_request(0), new_request(1))
    twin.step((a, 0, 6))
    got, want = twin.step((b, 0, 3), (a, 6, 1))
    expect(
        got,
        want,
        call="attend of (chunk of 3, decode), all of it in bfloat16, both layers [L, T, H, D]",
        atol=0.05,
    )


@pytest.mark.check(task=5, points=2, title="Random histories beside lists", stress=True)
def test_random(generator, rng):
    for _ in range(3):
        num_slots = int(rng.integers(1, 20))
        store = SlotStore(CONFIG, num_slots=num_slots, capacity=CAPACITY)
        twin, live, steps, number = Twin(store, generator), [], [], 0
        for _ in range(12):
            while store.can_admit(new_request(number)) and rng.random() < 0.8:
                live += admitted(store, new_request(number))
                number += 1
            chunks = []
            for i in rng.permutation(len(live)):
                room = CAPACITY - live[i].num_computed_tokens
                length = min(room, 1 if rng.random() < 0.7 else int(rng.integers(2, 6)))
                if length and rng.random() < 0.8:
                    chunks.append((live[i], live[i].num_computed_tokens, length))
            if chunks:
                steps.append(chunks)
                got, want = twin.step(*chunks)
                expect(
                    got,
                    want,
                    call=f"attend of step {len(steps)}, both layers [L, T, H, D]",
                    given={"chunks": [(r.number, start, n) for r, start, n in chunks],
                           "slots": [store.block_ids(r)[0] for r, _, _ in chunks]},
                    cause="each row sees its own request's places, up to its own position",
                )  # fmt: skip
            for request in [r for r in live if rng.random() < 0.2]:
                live.remove(request)
                store.release(request)
            store.check(live)
            slots = [tuple(store.block_ids(request)) for request in live]
            expect(
                [len(set(slots)), store.free_tokens, store.can_admit(new_request(number))],
                [
                    len(live),
                    store.total_tokens - sum(r.num_computed_tokens for r in live),
                    len(live) < num_slots,
                ],
                call="different slots of those that are in, free_tokens, and can_admit",
                given={"requests in": len(live), "slots": num_slots},
                cause="a slot has one owner; what is committed takes places until its release",
            )


@pytest.mark.check(task=5, points=1, title="What the last owner left can do no harm")
def test_stale_slot(generator):
    store = SlotStore(CONFIG, num_slots=2, capacity=CAPACITY)
    (old,) = admitted(store, new_request(0))
    (other,) = admitted(store, new_request(1))
    twin = Twin(store, generator)
    twin.step((other, 0, 8))
    plan = plan_of((old, 0, CAPACITY))
    twin.reserve(plan)
    attend = store.bind(plan)
    for layer in range(CONFIG.num_layers):  # a request that went wrong
        wrong = torch.full((CAPACITY, CONFIG.num_kv_heads, CONFIG.head_dim), torch.nan)
        attend(layer, twin.random(CAPACITY, CONFIG.num_heads, CONFIG.head_dim), wrong, wrong)
    store.release(old)
    (new,) = admitted(store, new_request(2))
    got, want = twin.step((new, 0, 1), (other, 8, 1))
    expect(
        [int(got[:, row].isnan().sum()) for row in (0, 1)],
        [0, 0],
        call="NaNs in the rows of a new request in a reused slot, and of its neighbour",
        given={"left there": "NaN in every place"},
        cause="the new one is short, its neighbour long: its row of the rectangle reaches places "
        "it never wrote",
    )
    expect(got, want, call="attend of the two decodes [L, T, H, D]")
