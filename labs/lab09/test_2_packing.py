"""Task 2: packing and checkpoints."""

import pytest
import torch

from grader import expect
from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.layouts import (
    from_awq,
    from_gptq,
    from_pack_quantized,
    to_awq,
    to_gptq,
    to_pack_quantized,
)
from nanovllm.quantization.packing import pack, unpack
from nanovllm.quantization.scheme import Scheme


def word(codes, bits):
    """One word of int32, the first code in the lowest bits."""
    value = sum(int(code) << (bits * place) for place, code in enumerate(codes))
    return value - (1 << 32) if value >= 1 << 31 else value


def row_of_words(codes, bits):
    in_a_word = 32 // bits
    codes = list(codes)
    return [word(codes[i : i + in_a_word], bits) for i in range(0, len(codes), in_a_word)]


def random_weight(rng, rows, columns, scheme, ordered=True):
    """Random codes on a random grid, whose groups may be mixed up."""
    width = scheme.group_size or columns
    group_of = torch.arange(columns).div(width, rounding_mode="floor")
    if not ordered:
        group_of = group_of[torch.from_numpy(rng.permutation(columns))]
    shape, codes = (rows, -(-columns // width)), 2**scheme.bits
    middle = torch.full(shape, codes // 2, dtype=torch.uint8)
    zeros = torch.from_numpy(rng.integers(0, codes, size=shape)).to(torch.uint8)
    scales = torch.from_numpy(rng.uniform(0.01, 2, size=shape)).half().float()
    grid = Grid(scheme.bits, scales, middle if scheme.symmetric else zeros, group_of)
    drawn = rng.integers(0, codes, size=(rows, columns))
    return QuantizedWeight(torch.from_numpy(drawn).to(torch.uint8), grid)


def said(weight):
    """All that is in a weight, as lists."""
    grid = weight.grid
    return {
        "codes": weight.codes.tolist(),
        "scales": grid.scales.tolist(),
        "zeros": grid.zeros.tolist(),
        "group_of": grid.group_of.tolist(),
        "dtypes": [weight.codes.dtype, grid.scales.dtype, grid.zeros.dtype],
        "bits": grid.bits,
    }


def listed(tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def dtypes(tensors):
    return {name: tensor.dtype for name, tensor in tensors.items()}


@pytest.mark.check(task=2, points=2, title="Codes side by side in words")
def test_pack(rng):
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 15]], dtype=torch.uint8)
    expect(
        pack(codes, 4),
        torch.tensor([[word(codes[0, :8], 4), 15]], dtype=torch.int32),
        call="pack([[1, 2, 3, 4, 5, 6, 7, 8, 15]], bits=4), in hex 0x87654321 and 0x0000000f",
        cause="the first code is in the lowest four bits; the top one may set the sign of int32",
    )
    for bits in (2, 3, 4, 8):
        shape = (2, 3, int(rng.integers(1, 40)))
        codes = torch.from_numpy(rng.integers(0, 2**bits, size=shape)).to(torch.uint8)
        codes[0, 0] = 2**bits - 1
        expect(
            pack(codes, bits),
            torch.tensor([[row_of_words(row, bits) for row in part] for part in codes.tolist()],
                         dtype=torch.int32),
            call=f"pack of codes of shape {shape}, bits={bits}",
            cause="32 // bits codes in a word, along the last dimension; what is left is 0",
        )  # fmt: skip


@pytest.mark.check(task=2, points=2, title="And out of them again")
def test_unpack(rng):
    words = torch.tensor([[-1, -2], [-(1 << 31), 0x7654321F]], dtype=torch.int32)
    expect(
        unpack(words, 4, 16),
        torch.tensor([[15] * 8 + [14] + [15] * 7, [0] * 7 + [8, 15, 1, 2, 3, 4, 5, 6, 7]],
                     dtype=torch.uint8),
        call="unpack([[-1, -2], [-2147483648, 0x7654321f]], bits=4, count=16)",
        cause="a right shift of a negative int32 brings ones from the left: they are not part of "
        "the code",
    )  # fmt: skip
    for bits in (2, 3, 4, 8):
        count = int(rng.integers(1, 40))
        codes = rng.integers(0, 2**bits, size=(2, 2, count)).tolist()
        words = [[row_of_words(row, bits) for row in part] for part in codes]
        expect(
            unpack(torch.tensor(words, dtype=torch.int32), bits, count),
            torch.tensor(codes, dtype=torch.uint8),
            call=f"unpack of words that hold {count} codes a row, bits={bits}",
        )


@pytest.mark.check(task=2, points=2, title="compressed-tensors, packed")
def test_pack_quantized(rng):
    for bits, rows, columns, size in ((4, 11, 19, 6), (8, 5, 8, None), (3, 12, 11, 4)):
        for symmetric in (False, True):
            scheme = Scheme(bits, size, symmetric)
            weight = random_weight(rng, rows, columns, scheme)
            grid = weight.grid
            zero_point = [row_of_words(column, bits) for column in grid.zeros.T.tolist()]
            wanted = {
                "weight_packed": [row_of_words(row, bits) for row in weight.codes.tolist()],
                "weight_scale": grid.scales.tolist(),
                "weight_shape": [rows, columns],
                "weight_zero_point": [list(words) for words in zip(*zero_point, strict=True)],
            }
            if symmetric:
                del wanted["weight_zero_point"]
            call = f"to_pack_quantized of [{rows}, {columns}] with {scheme}"
            found = to_pack_quantized(weight, scheme)
            expect(
                dict(sorted(listed(found).items())),
                wanted,
                call=call,
                cause="codes along K as they are; zero points along N, so their words are "
                "[ceil(N / p), M]; none where the scheme is symmetric",
            )
            expect(
                [found["weight_scale"].dtype, found["weight_shape"].dtype],
                [torch.float16, torch.int64],
                call=f"dtypes of weight_scale and weight_shape of {call}",
            )
            expect(
                said(from_pack_quantized(found, scheme)),
                said(weight),
                call="from_pack_quantized of these tensors",
            )
    scheme = Scheme(4, 4, True)
    weight = random_weight(rng, 3, 12, scheme, ordered=False)
    tensors = to_pack_quantized(weight, scheme) | {"weight_g_idx": weight.grid.group_of.int()}
    expect(
        said(from_pack_quantized(tensors, scheme)),
        said(weight),
        call="from_pack_quantized of tensors with a weight_g_idx",
        cause="weight_g_idx says the group of each column",
    )


@pytest.mark.check(task=2, points=2, title="GPTQ, versions 1 and 2")
def test_gptq(rng):
    for bits, rows, columns, size in ((4, 11, 20, 8), (8, 6, 9, None)):
        scheme = Scheme(bits, size)
        weight = random_weight(rng, rows, columns, scheme, ordered=False)
        weight.grid.zeros[0, 0], weight.grid.zeros[1, 0] = 0, 1
        by_row = [row_of_words(row, bits) for row in weight.codes.tolist()]
        for version in (1, 2):
            less = 1 if version == 1 else 0
            zeros = (weight.grid.zeros.int() - less) % 2**bits
            wanted = {
                "g_idx": weight.grid.group_of.tolist(),
                "qweight": [list(words) for words in zip(*by_row, strict=True)],
                "qzeros": [row_of_words(group, bits) for group in zeros.T.tolist()],
                "scales": weight.grid.scales.T.tolist(),
            }
            found = to_gptq(weight, version)
            call = f"to_gptq of [{rows}, {columns}], {bits} bits, version {version}"
            expect(
                dict(sorted(listed(found).items())),
                wanted,
                call=call,
                cause="qweight is [ceil(K / p), N] with codes along K, qzeros [M, ceil(N / p)] "
                "with zero points along N; version 1 takes 1 off each, and 0 becomes the last code",
            )
            expect(
                [found["g_idx"].dtype, found["scales"].dtype],
                [torch.int32, torch.float16],
                call=f"dtypes of g_idx and scales of {call}",
            )
            expect(
                said(from_gptq(found, scheme, version)),
                said(weight),
                call=f"from_gptq of these tensors, version {version}",
            )


@pytest.mark.check(task=2, points=2, title="AWQ, in its own order")
def test_awq(rng):
    for bits, order in ((4, [0, 2, 4, 6, 1, 3, 5, 7]), (8, [0, 2, 1, 3])):
        in_a_word = 32 // bits
        for rows, columns, size in ((3 * in_a_word, 7, 3), (2 * in_a_word + 1, 5, None)):
            scheme = Scheme(bits, size)
            weight = random_weight(rng, rows, columns, scheme)

            def along_rows(column, in_a_word=in_a_word, order=order, bits=bits):
                column = column + [0] * (-len(column) % in_a_word)
                parts = [column[i : i + in_a_word] for i in range(0, len(column), in_a_word)]
                return [word([part[place] for place in order], bits) for part in parts]

            wanted = {
                "qweight": [along_rows(column) for column in weight.codes.T.tolist()],
                "qzeros": [along_rows(group) for group in weight.grid.zeros.T.tolist()],
                "scales": weight.grid.scales.T.tolist(),
            }
            found = to_awq(weight)
            call = f"to_awq of [{rows}, {columns}], {bits} bits, groups of {size}"
            expect(
                dict(sorted(listed(found).items())),
                wanted,
                call=call,
                cause=f"the codes of a word are {in_a_word} rows of one column, in the order "
                f"{' '.join(map(str, order))}; a word that is not full is filled up with zeros "
                "before it is brought into this order",
            )
            expect(
                dtypes(found),
                {"qweight": torch.int32, "qzeros": torch.int32, "scales": torch.float16},
                call=f"dtypes of {call}",
            )
            expect(said(from_awq(found, scheme)), said(weight), call="from_awq of these tensors")


@pytest.mark.check(task=2, points=1, title="Scales of another's file")
def test_stored_scales(rng):
    """bfloat16 has numbers that float16 has not: its largest is 65,504, its least near 6e-8."""
    for bits, size in ((4, 4), (8, None)):
        scheme = Scheme(bits, size)
        weight = random_weight(rng, 6, 10, scheme)
        power = torch.from_numpy(rng.uniform(-12, 0, size=weight.grid.scales.shape))
        weight.grid.scales.copy_((10**power).bfloat16())
        weight.grid.scales[0, 0] = 2.0**-30
        for layout, tensors, back in (
            ("pack-quantized", to_pack_quantized(weight, scheme), from_pack_quantized),
            ("GPTQ", to_gptq(weight), from_gptq),
            ("AWQ", to_awq(weight), from_awq),
        ):
            expect(
                back(tensors, scheme).grid.scales,
                weight.grid.scales,
                call=f"scales that were bfloat16 in a file, to {layout} and back, {scheme}",
                given={"scales": weight.grid.scales.tolist()},
                cause="the tensors have the grid's `stored_scales`, float32 where float16 would "
                "change one",
                rtol=0,
                atol=0,
            )


@pytest.mark.check(task=2, points=1, title="Nothing is lost (random shapes)")
def test_random(rng):
    for _ in range(10):
        bits, rows, columns = int(rng.choice([4, 8])), *rng.integers(1, 40, size=2).tolist()
        size = int(rng.integers(1, 40)) if rng.random() < 0.7 else None
        scheme = Scheme(bits, size, bool(rng.random() < 0.3))
        weight = random_weight(rng, rows, columns, scheme)
        back = {
            "pack-quantized": from_pack_quantized(to_pack_quantized(weight, scheme), scheme),
            "GPTQ 1": from_gptq(to_gptq(weight), scheme),
            "GPTQ 2": from_gptq(to_gptq(weight, 2), scheme, 2),
            "AWQ": from_awq(to_awq(weight), scheme),
        }
        for layout, found in back.items():
            expect(
                said(found),
                said(weight),
                call=f"a weight [{rows}, {columns}] with {scheme} to {layout} and back",
            )
            expect(
                found.dequantize(), weight.dequantize(), call="what it stands for", rtol=0, atol=0
            )
