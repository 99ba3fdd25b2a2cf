"""Task 5: the slot store."""

import pytest
import torch

from grader import expect
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

    def __init__(self, store, generator):
        self.store, self.generator = store, generator
        self.kept = {}

    def random(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def step(self, *chunks):
        """Run a plan through store and twin, all layers; both results [L, T, H, D]."""
        plan = plan_of(*chunks)
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


@pytest.mark.check(
    task=5,
    points=2,
    title="A slot each, and back again",
    hints=(
        "Two requests must never own one slot; a released one may be given to the next.",
        "admit: pop a free slot, note its owner, length 0. release: the reverse.",
        "slot = self.slot_of.pop(request); self.lengths[slot] = 0; self.free_slots.append(slot)",
    ),
)
def test_slots():
    store = SlotStore(CONFIG, num_slots=3, capacity=CAPACITY)
    a, b, c, d = (new_request(i) for i in range(4))
    found = [store.admit(request) for request in (a, b, c)]
    expect(found, [0, 0, 0], call="admit of three requests", cause="none of their tokens are here")
    expect(
        [sorted(store.slot_of.values()), store.can_admit(d)],
        [[0, 1, 2], False],
        call="the slots of three requests in a store of three, and can_admit of a fourth",
        cause="every request has a slot of its own",
    )
    freed = store.slot_of[b]
    store.commit(plan_of((b, 0, 5)))
    store.release(b)
    expect(
        [store.can_admit(d), store.free_slots, store.free_tokens],
        [True, [freed], 3 * CAPACITY],
        call="can_admit, free_slots and free_tokens after one of three was released",
        cause="the slot is free, and it holds nobody's tokens",
    )
    store.admit(d)
    expect(
        [store.slot_of[d], b in store.slot_of, store.lengths],
        [freed, False, [0, 0, 0]],
        call="the slot of the next request, whether the old one has one, and the lengths",
    )
    store.check([a, c, d])


@pytest.mark.check(
    task=5,
    points=2,
    title="Room to the last place, and committed tokens",
    hints=(
        "A slot of 12 places holds 12 tokens, not 11 and not 13.",
        "reserve compares computed plus new tokens with the capacity; commit sets the length to "
        "the end of the chunk.",
        "return request.num_computed_tokens + num_tokens <= self.capacity",
    ),
)
def test_room():
    store = SlotStore(CONFIG, num_slots=2, capacity=CAPACITY)
    a, b = admitted(store, new_request(0), new_request(1))
    seen = []
    for computed in (0, 7, 12):
        a.num_computed_tokens = computed
        seen.append([store.reserve(a, n) for n in (1, 5, 6, 12, 13)])
    expect(
        seen,
        [
            [True, True, True, True, False],
            [True, True, False, False, False],
            [False, False, False, False, False],
        ],
        call="reserve(request, n) for n in 1, 5, 6, 12, 13, with 0, 7, 12 of 12 places taken",
        cause="the new tokens go behind the computed ones",
    )
    a.num_computed_tokens = 0
    store.commit(plan_of((a, 0, 4), (b, 0, 1)))
    store.commit(plan_of((a, 4, 3)))
    expect(
        [store.lengths[store.slot_of[a]], store.lengths[store.slot_of[b]], store.free_tokens],
        [7, 1, 2 * CAPACITY - 8],
        call="lengths after commits of 4 and 3 tokens of one request and 1 of another, free_tokens",
        cause="a chunk's tokens add to those before it",
    )


@pytest.mark.check(
    task=5,
    points=2,
    title="Every token has its place",
    hints=(
        "For each token of the plan: which slot, and where in it?",
        "A chunk of length n is n times its request's slot, at start .. end - 1.",
        "torch.full((c.length,), self.slot_of[c.request]) and torch.arange(c.start, c.end), joined",
    ),
)
def test_places():
    store = SlotStore(CONFIG, num_slots=3, capacity=CAPACITY)
    a, b, c = (new_request(i) for i in range(3))
    store.slot_of = {a: 2, b: 0, c: 1}
    slots, positions = store.places(plan_of((b, 4, 3), (c, 9, 1), (a, 0, 2)))
    expect(
        [slots, positions],
        [torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([4, 5, 6, 9, 0, 1])],
        call="places of chunks (slot 0, 4..6), (slot 1, 9), (slot 2, 0..1)",
        cause="positions count in the request, not in the step",
    )


@pytest.mark.check(
    task=5,
    points=3,
    title="A chunk sees its own slot, up to its own end",
    hints=(
        "Two prompts in one step, then the rest of each: whom does a token see?",
        "All tokens are written first; a chunk's queries look at places 0 .. end - 1 of its slot.",
        "attention(q, self.k[layer, slot, : chunk.end], self.v[layer, slot, : chunk.end], "
        "window=self.config.window(layer))",
    ),
)
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


@pytest.mark.check(
    task=5,
    points=3,
    title="Decodes of ragged lengths, all in one call",
    hints=(
        "Rows of 9, 1 and 5 tokens: what must the short ones not see?",
        "A rectangle of the longest length, a mask by position; heads of a group share K and V.",
        "Of row i the places before its end are visible; a group's heads are queries of a row.",
    ),
)
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


@pytest.mark.check(
    task=5,
    points=2,
    title="Mixed batches come back in the order of the plan",
    hints=(
        "Single tokens and chunks stand among each other; so must the results.",
        "Note at which row of the step each chunk begins; gather the single rows, put each result "
        "back where it belongs.",
        "Keep the rows of the single tokens beside their chunks; write the results by those rows.",
    ),
)
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


@pytest.mark.check(
    task=5,
    points=2,
    title="What the last owner left can do no harm",
    hints=(
        "NaN times 0 is NaN: a mask is not enough.",
        "A slot is handed over clean.",
        "self.k[:, slot] = 0.0; self.v[:, slot] = 0.0 in admit",
    ),
)
def test_stale_slot(generator):
    store = SlotStore(CONFIG, num_slots=2, capacity=CAPACITY)
    (old,) = admitted(store, new_request(0))
    (other,) = admitted(store, new_request(1))
    twin = Twin(store, generator)
    twin.step((other, 0, 8))
    slot = store.slot_of[old]
    store.k[:, slot], store.v[:, slot] = torch.nan, torch.nan  # a request that went wrong
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
