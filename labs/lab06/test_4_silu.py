"""Task 4: SiLU and multiply."""

import pytest
import torch

from grader import expect
from grader.checks.guard_regions import Guard
from nanovllm.kernels.runtime import DEVICE
from nanovllm.kernels.silu import silu_and_mul


def oracle(gate_up):
    gate, up = gate_up.double().chunk(2, -1)
    return (gate * gate.sigmoid() * up).to(gate_up.dtype)


@pytest.mark.check(
    task=4,
    points=3,
    title="The gate comes first, and bends",
    hints=(
        "Which half of a row goes through the sigmoid?",
        "silu(x) = x * sigmoid(x), of the first half; the second half is multiplied as it is.",
        "gate * tl.sigmoid(gate) * up",
    ),
)
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


@pytest.mark.check(
    task=4,
    points=3,
    title="Widths that no block divides",
    hints=(
        "A second axis of the grid goes over the columns. How many programs has it?",
        "cdiv(I, block); each masks the columns beyond I, which are the up projection's.",
        "dims = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK); grid = (tokens, "
        "triton.cdiv(width, block))",
    ),
)
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
            expect(
                len({access.program for access in trace.accesses}),
                tokens * -(-width // 16),
                call="programs that silu_and_mul(gate_up, out, block=16) runs",
                given=given,
                cause="a row is shared by cdiv(I, block) programs",
            )


@pytest.mark.check(
    task=4,
    points=2,
    title="Any strides, half precision",
    hints=(
        "The up projection of column j is I columns further on. Where in memory is that?",
        "Columns have a stride, too: (I + j) times it. And sigmoid wants float32.",
        "tl.load(row + (width + dims) * stride_in_dim, mask=inside).to(tl.float32)",
    ),
)
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
