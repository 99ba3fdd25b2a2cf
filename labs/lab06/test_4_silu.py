"""Task 4: SiLU and multiply."""

from collections import defaultdict

import pytest
import torch

from grader import expect
from grader.checks import kernel_calls
from grader.checks.compiled import takes
from grader.checks.guard_regions import Guard
from nanovllm.kernels.runtime import DEVICE
from nanovllm.kernels.silu import silu_and_mul


def oracle(gate_up):
    gate, up = gate_up.double().chunk(2, -1)
    return (gate * gate.sigmoid() * up).to(gate_up.dtype)


@pytest.mark.check(task=4, points=1, title="The gate comes first, and bends")
def test_values(generator):
    gate_up = 3 * torch.randn(2, 32, generator=generator)
    gate_up[0, 0], gate_up[1, 1] = -120.0, 90.0
    guard = Guard(DEVICE)
    expect(
        silu_and_mul(guard.place(gate_up, gap=0), guard.empty(2, 16, gap=0)),
        oracle(gate_up),
        call="silu_and_mul(gate_up [2, 32])",
        cause="silu(gate) * up: gate in columns 0 .. I - 1, up behind it",
    )


@pytest.mark.check(task=4, points=2, title="Widths that no block divides")
def test_widths(generator):
    for tokens, width in ((1, 1), (2, 17), (1, 48), (1, 33)):
        guard = Guard(DEVICE)
        gate_up = torch.randn(tokens, 2 * width, generator=generator)
        out = guard.empty(tokens, width)
        with guard.watched() as trace:
            silu_and_mul(guard.place(gate_up), out, block=16)
        given = {"T": tokens, "I": width, "block": 16}
        expect(
            out,
            oracle(gate_up),
            call="silu_and_mul(gate_up, out, block=16)",
            given=given,
            cause="columns that no program took, or the wrong ones",
        )
        guard.check("silu_and_mul(gate_up, out, block=16)", given)
        if trace is not None:
            stored = defaultdict(set)
            for access in trace.accesses:
                if access.is_store:
                    elements = (access.addresses.astype(int) - out.data_ptr()) // 4
                    stored[access.program].update((elements % out.stride(0)).tolist())
            most = max(map(len, stored.values()), default=0)
            expect.that(
                0 < most <= 16,
                "no program writes more than 16 columns, be it of one row or of several",
                observed=most,
                call="most columns that a program of silu_and_mul(gate_up, out, block=16) writes",
                given=given,
                cause="a wide row is shared by several programs",
            )


@pytest.mark.check(task=4, points=1, title="Any strides, half precision")
def test_strides(generator):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        gate_up = torch.randn(3, 20, generator=generator).to(dtype)
        guard = Guard(DEVICE)
        turned = guard.place(gate_up.t()).t()
        out = guard.empty(3, 20, dtype=dtype)[:, ::2]
        silu_and_mul(turned, out)
        expect(
            out,
            oracle(gate_up),
            given={"dtype": str(dtype)},
            call="silu_and_mul(gate_up stored by columns, out[:, ::2])",
            cause="a stride was left out",
        )
        new = silu_and_mul(turned)
        expect(
            [new, str(new.dtype)],
            [oracle(gate_up), str(dtype)],
            given={"dtype": str(dtype)},
            call="silu_and_mul(gate_up), without out, and its dtype",
            cause="the new result has the type of gate_up",
        )
        expect(
            silu_and_mul(turned, guard.empty(3, 20 // 2)),
            oracle(gate_up.float()),
            given={"dtype": str(dtype), "dtype of out": "torch.float32"},
            call="silu_and_mul(gate_up, out)",
            cause="the result is rounded once, to the type of out",
        )


@pytest.mark.check(task=4, points=1, title="Random shapes, layouts and types", stress=True)
def test_random(generator):
    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    sizes = sorted((draw(1, 4), draw(1, 90)) for _ in range(4))
    for i, (tokens, width) in enumerate(sizes):
        dtype = (torch.float32, torch.bfloat16)[i % 2]
        gate_up = (3 * torch.randn(tokens, 2 * width, generator=generator)).to(dtype)
        order, block = ((0, 1), (1, 0))[draw(0, 1)], 2 ** draw(3, 6)
        guard = Guard(DEVICE)
        out = guard.empty(tokens, width, gap=draw(0, 2), dtype=dtype, order=order[::-1])
        with guard.watched():
            silu_and_mul(guard.place(gate_up, order=order), out, block=block)
        given = {"T": tokens, "I": width, "block": block, "stored in order": order}
        given["dtype"] = str(dtype)
        expect(
            out,
            oracle(gate_up),
            call="silu_and_mul(gate_up, out, block)",
            given=given,
            cause="any strides, any width, any block",
        )
        guard.check("silu_and_mul(gate_up, out, block)", given)


@pytest.mark.check(task=4, points=1, title="A GPU's compiler takes it")
def test_compiled():
    takes(kernel_calls.silu, "silu_and_mul")
