"""Task 6: W4A16 in Triton."""

import pytest
import torch

from grader import expect
from grader.checks import kernel_calls
from grader.checks.compiled import takes
from grader.checks.guard_regions import ODD, Guard, dirty_memory
from nanovllm.kernels.runtime import DEVICE
from nanovllm.quantization.w4a16 import w4a16


class Case:
    """A weight of 4 bits, in a layout of this file's own, and an x."""

    def __init__(self, generator, rows, outputs, inputs, group, dtype=torch.float32, order=None):
        self.given = {"T": rows, "N": outputs, "K": inputs, "columns of a group": group}
        self.x = torch.randn(rows, inputs, generator=generator).to(dtype)
        self.codes = torch.randint(0, 16, (outputs, inputs), generator=generator)
        groups = torch.arange(inputs) // group
        self.group_of = (groups if order is None else groups[order]).int()
        count = int(groups[-1]) + 1
        self.scales = (0.1 + torch.rand(outputs, count, generator=generator)).half()
        self.zeros = torch.randint(0, 16, (outputs, count), generator=generator).to(torch.uint8)

    @property
    def words(self):
        """Eight codes a word, the first in the lowest bits."""
        outputs, inputs = self.codes.shape
        padded = torch.zeros(outputs, -(-inputs // 8) * 8, dtype=torch.long)
        padded[:, :inputs] = self.codes
        words = sum(padded[:, i::8] << (4 * i) for i in range(8))
        return torch.where(words >= 1 << 31, words - (1 << 32), words).int()

    @property
    def product(self):
        """x w^T in float64, w rounded to x's dtype first."""
        groups = self.group_of.long()
        zeros, scales = self.zeros[:, groups].float(), self.scales[:, groups].float()
        weight = ((self.codes.float() - zeros) * scales).to(self.x.dtype)
        return (self.x.double() @ weight.double().T).to(self.x.dtype)

    def on_device(self):
        parts = self.x, self.words, self.scales, self.zeros, self.group_of
        return [part.to(DEVICE) for part in parts]

    def judge(self, out, call="w4a16(x, words, scales, zeros, group_of)", cause=""):
        expect(out, self.product, call=call, given=self.given, cause=cause,
               rtol=2e-5 if self.x.dtype is torch.float32 else None,
               atol=2e-4 if self.x.dtype is torch.float32 else None)  # fmt: skip


@pytest.mark.check(task=6, points=2, title="Unpacked, shifted and scaled")
def test_values(generator):
    for rows, outputs, inputs in ((16, 32, 64), (16, 16, 128), (32, 64, 64)):
        case = Case(generator, rows, outputs, inputs, 64)
        with dirty_memory():
            out = w4a16(*case.on_device())
        expect([str(out.dtype), list(out.shape)], ["torch.float32", [rows, outputs]],
               call="dtype and shape of w4a16(...)", given=case.given)  # fmt: skip
        case.judge(
            out,
            cause="code k of a row has the bits 4 (k % 8) .. 4 (k % 8) + 3 of word k // 8; less "
            "its zero point, times its scale",
        )
    case = Case(generator, 1, 1, 8, 8)
    case.x = torch.eye(8)
    case.codes = torch.arange(8, 16)[None]
    case.judge(
        w4a16(*case.on_device()),
        "w4a16 of the rows of an identity; codes 8 .. 15, so that the word is negative",
        "`>>` of a negative int32 brings in ones from the left",
    )


@pytest.mark.check(task=6, points=1, title="Tails, and nothing beside the tensors")
def test_tails(generator):
    for rows, outputs, inputs, group in ((1, 1, 1, 1), (3, 5, 9, 64), (17, 33, 70, 64),
                                         (65, 7, 130, 32)):  # fmt: skip
        case, guard = Case(generator, rows, outputs, inputs, group), Guard(DEVICE)
        x, words, scales, zeros, group_of = case.on_device()
        placed = [
            guard.place(x),
            guard.place(words, poison=0x77777777),
            guard.place(scales),
            guard.place(zeros, poison=255),
            guard.place(group_of, poison=0x7FFFFFF),
        ]
        out = guard.empty(rows, outputs)
        with guard.watched():
            found = w4a16(*placed, out)
        expect.that(found is out, "w4a16 gives back the `out` that it was given", given=case.given)
        case.judge(
            out,
            "w4a16(x, words, scales, zeros, group_of, out)",
            "what lies beyond T, N or K is no part of the product",
        )
        guard.check("w4a16(x, words, scales, zeros, group_of, out)", case.given)


@pytest.mark.check(task=6, points=1, title="Groups of any size")
def test_groups(generator):
    for group in (1, 5, 8, 24, 48, 96, 200, 500):
        case = Case(generator, 2, 6, 200, group)
        case.judge(
            w4a16(*case.on_device()),
            cause="a tile of the product has columns of several groups, or a group those of "
            "several tiles: ask for each column",
        )
    case = Case(generator, 2, 6, 100, 10, order=torch.randperm(100, generator=generator))
    case.judge(
        w4a16(*case.on_device()),
        "w4a16 with columns whose groups do not lie one after another",
        "the group of column k is group_of[k]",
    )


@pytest.mark.check(task=6, points=1, title="Any strides")
def test_strides(generator):
    case, guard = Case(generator, 5, 18, 40, 16), Guard(DEVICE)
    x, words, scales, zeros, group_of = case.on_device()
    twice = torch.stack([group_of, group_of.flip(0)], -1).reshape(-1)
    out = guard.empty(5, 18, order=(1, 0))
    w4a16(
        guard.place(x, order=(1, 0)),
        guard.place(words, order=(1, 0), poison=7),
        guard.place(scales, order=(1, 0)),
        guard.place(zeros, order=(1, 0), poison=3),
        twice[::2],
        out,
    )
    case.judge(out, "w4a16 of transposed views, and every second element of group_of",
               "a stride was left out, or taken from another tensor")  # fmt: skip
    guard.check("w4a16 of transposed views", case.given)


@pytest.mark.check(task=6, points=1, title="Half precision")
def test_half(generator):
    for dtype in (torch.float16, torch.bfloat16):
        case = Case(generator, 4, 20, 72, 24, dtype)
        out = w4a16(*case.on_device())
        expect(str(out.dtype), str(dtype), call=f"dtype of w4a16 of an x of {dtype}")
        case.judge(out)
    case = Case(generator, 3, 10, 40, 8)
    case.scales = case.scales.float() * 1e-7
    case.judge(w4a16(*case.on_device()), "w4a16 with scales of float32, too small for float16")
    case = Case(generator, 2, 3, 3000, 300, torch.float16)
    case.x = torch.full_like(case.x, 2.0)
    case.codes = torch.full_like(case.codes, 15)
    case.zeros = torch.zeros_like(case.zeros)
    case.scales = torch.full_like(case.scales, 1.0)
    out = Guard(DEVICE).empty(2, 3)
    w4a16(*case.on_device(), out)
    expect(
        out,
        torch.full((2, 3), 90_000.0),
        call="w4a16 of x of float16 into an out of float32; every product is 30, K = 3,000",
        cause="sums are float32: float16 ends at 65,504, and counts by 32 from there on",
    )


@pytest.mark.check(task=6, points=1, title="Every word once, and no weight stored")
def test_bytes(generator):
    for rows in (1, 16):
        case, guard = Case(generator, rows, 40, 136, 64), Guard(DEVICE)
        x, words, scales, zeros, group_of = case.on_device()
        words = guard.place(words, gap=0, poison=7)
        out = guard.place(torch.zeros(rows, 40), gap=0, poison=ODD)
        with guard.watched() as trace:
            w4a16(x, words, scales, zeros, group_of, out)
        case.judge(out)
        if trace is None:
            continue
        expect(
            guard.loads(words),
            40 * 17,
            call="words of the weight that are loaded",
            given=case.given,
            cause="eight codes come with one load",
        )
        expect(
            trace.bytes_written,
            4 * rows * 40,
            call="bytes that are stored",
            given=case.given,
            cause="the unpacked weight stays in registers",
        )


@pytest.mark.check(task=6, points=1, title="A GPU's compiler takes it")
def test_compiled():
    takes(kernel_calls.w4a16, "w4a16")
