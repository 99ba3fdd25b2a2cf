"""Task 1: grids."""

import math

import pytest
import torch

from grader import expect
from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.grids import fit_grid, nearest_codes, round_to_nearest
from nanovllm.quantization.measures import bits_per_weight, perplexity
from nanovllm.quantization.scheme import Scheme


def said(grid):
    """Scales and zero points as lists, and the group of each column."""
    return [grid.scales.tolist(), grid.zeros.tolist(), grid.group_of.tolist()]


def values_of(grid):
    """What every code of every weight would stand for: [codes, N, K]."""
    codes = torch.arange(2**grid.bits, dtype=torch.float64).view(-1, 1, 1)
    group = grid.group_of.long()
    return (codes - grid.zeros[:, group].double()) * grid.scales[:, group].double()


@pytest.mark.check(task=1, points=2, title="Symmetric: the step of the largest weight")
def test_symmetric():
    weight = torch.tensor([[1.5, -3.0, 0.0], [0.75, 0.0, 0.25], [-6.0, 1.0, 2.0]])
    expect(
        said(fit_grid(weight, Scheme(bits=2, group_size=None, symmetric=True))),
        [[[2.0], [0.5], [4.0]], [[2], [2], [2]], [0, 0, 0]],
        call="fit_grid of rows whose largest weights are -3.0, 0.75, -6.0, with 2 bits, symmetric: "
        "scales, zeros, group_of",
        cause="four codes are three steps from first to last, so the largest weight lies 1.5 "
        "steps from 0; every row has a scale of its own",
    )
    grid = fit_grid(
        torch.tensor([[63.75, -10.0], [3.0, -127.5]]), Scheme(8, group_size=None, symmetric=True)
    )
    expect(
        said(grid),
        [[[0.5], [1.0]], [[128], [128]], [0, 0]],
        call="fit_grid of rows whose largest weights are 63.75 and -127.5, with 8 bits, symmetric",
        cause="255 steps from -128 to 127: the largest weight lies 127.5 of them from 0",
    )
    expect(
        [grid.bits, grid.scales.dtype, grid.zeros.dtype],
        [8, torch.float32, torch.uint8],
        call="bits of this grid, dtype of its scales and of its zeros",
    )


@pytest.mark.check(task=1, points=2, title="Asymmetric: the range, with 0 in it")
def test_asymmetric():
    rows = {
        (-1.0, 0.5, 2.0): (1.0, 1),
        (1.0, 6.0, 3.0): (2.0, 0),
        (-4.0, -6.0, -1.0): (2.0, 3),
        (-1.4, 1.6, 0.0): (1.0, 1),
        (-1.6, 1.4, 0.0): (1.0, 2),
        (0.0, 0.75, 0.5): (0.25, 0),
    }
    grid = fit_grid(torch.tensor(list(rows)), Scheme(bits=2, group_size=3))
    expect(
        [[float(s), int(z)] for s, z in zip(grid.scales[:, 0], grid.zeros[:, 0], strict=True)],
        [list(wanted) for wanted in rows.values()],
        call=f"scale and zero point of rows {[list(row) for row in rows]}, with 2 bits",
        cause="three steps from the smallest to the largest weight, 0 always in the range; the "
        "zero point is the code nearest to 0's place",
        rtol=1e-3,
    )
    grid = fit_grid(torch.tensor([[-10.0, 0.0, 20.0], [-8.0, 2.0, 7.0]]), Scheme(4, group_size=3))
    expect(
        said(grid),
        [[[2.0], [1.0]], [[5], [8]], [0, 0, 0]],
        call="fit_grid of [-10, 0, 20] and [-8, 2, 7], with 4 bits",
        cause="15 steps",
    )
    grid = fit_grid(torch.tensor([[-127.52, 127.582]]), Scheme(8, group_size=2))
    expect(
        said(grid),
        [[[1.0]], [[128]], [0, 0]],
        call="fit_grid of [-127.52, 127.582], with 8 bits",
        cause="float16 makes the scale 1.0004 to 1: the zero point is that of the scale so rounded",
    )


@pytest.mark.check(task=1, points=2, title="Groups of columns, and what is left for the last")
def test_groups():
    weight = torch.tensor([[3.0, 1.0, 0.0, 6.0, 2.0, 0.0, 1.5, 12.0],
                           [0.0, 0.0, 9.0, 0.0, 0.0, 1.5, 0.0, 30.0]])  # fmt: skip
    expect(
        said(fit_grid(weight, Scheme(bits=2, group_size=3))),
        [[[1.0, 2.0, 4.0], [3.0, 0.5, 10.0]], [[0] * 3] * 2, [0, 0, 0, 1, 1, 1, 2, 2]],
        call="fit_grid of two rows of 8 columns in groups of 3: scales, zeros, group_of",
        cause="a scale for each group of each row; the last group has the two columns that are "
        "left",
    )
    for size, groups in ((1, list(range(8))), (8, [0] * 8), (50, [0] * 8), (7, [0] * 7 + [1])):
        grid = fit_grid(weight, Scheme(bits=2, group_size=size))
        expect(
            [grid.group_of.tolist(), list(grid.scales.shape), list(grid.zeros.shape)],
            [groups, [2, groups[-1] + 1], [2, groups[-1] + 1]],
            call=f"group_of of 8 columns in groups of {size}, shapes of scales and zeros",
        )


@pytest.mark.check(task=1, points=1, title="Scales as a file stores them")
def test_scales():
    weight = torch.tensor([[1.0, 0.0, 0.3], [0.0, 0.0, 0.0], [1e-9, -2e-9, 0.0], [-7.7, 3.1, 2.0]])
    for symmetric in (True, False):
        grid = fit_grid(weight, Scheme(bits=4, group_size=None, symmetric=symmetric))
        expect(
            grid.scales,
            grid.scales.half().float(),
            call=f"scales with symmetric={symmetric}, and the same through float16",
            cause="a scale is rounded to float16 before any code is chosen, or the codes in a "
            "file stand for something else than yours",
            rtol=0,
            atol=0,
        )
        expect(
            [float(grid.scales[1, 0]), float(grid.scales[2, 0])],
            [1.0, 1.0],
            call="scales of a row of zeros and of a row whose scale is too small for float16, "
            f"with symmetric={symmetric}",
            cause="where float16 has only 0 for a scale, it is 1: nothing is divided by 0",
        )
    half = torch.tensor([[1.0, -0.30078125]], dtype=torch.bfloat16)
    expect(
        fit_grid(half, Scheme(bits=4, group_size=2)).scales,
        torch.tensor([[0.0867311]]),
        call="the scale of bfloat16 weights 1.0 and -0.30078125, with 4 bits",
        cause="bfloat16 has three digits: make the weights float32 first",
        rtol=5e-4,
    )


@pytest.mark.check(task=1, points=1, title="The nearest code, and the ends")
def test_nearest():
    grid = Grid(
        2,
        torch.tensor([[0.5, 2.0], [1.0, 0.25]]),
        torch.tensor([[1, 2], [0, 3]], dtype=torch.uint8),
        torch.tensor([0, 0, 0, 1, 1, 1]),
    )
    weight = torch.tensor([[-0.6, 0.3, 0.9, -0.9, -5.2, 1.1], [0.4, 1.6, 2.6, -0.1, -0.2, -0.6]])
    codes = nearest_codes(weight, grid)
    expect(
        codes,
        torch.tensor([[0, 2, 3, 2, 0, 3], [0, 2, 3, 3, 2, 1]], dtype=torch.uint8),
        call=f"nearest_codes of {weight.tolist()} with scales {grid.scales.tolist()} and zero "
        f"points {grid.zeros.tolist()} in groups of 3",
        cause="divide by the scale of the weight's own group, round, then add its zero point",
    )
    far = torch.tensor([[-99.0, 99.0, -2.1, -9999.0, 9999.0, 3.1]] * 2)
    expect(
        nearest_codes(far, grid).tolist(),
        [[0, 3, 0, 0, 3, 3]] * 2,
        call=f"nearest_codes of {far[0].tolist()} in both rows",
        cause="beyond the ends a weight gets the first or the last code; a uint8 that is too "
        "large begins again at 0",
    )


@pytest.mark.check(task=1, points=1, title="No other code is nearer (random weights)")
def test_random(rng):
    for _ in range(12):
        bits, rows, columns = int(rng.choice([2, 3, 4, 8])), *rng.integers(1, 20, size=2).tolist()
        size = int(rng.integers(1, 24)) if rng.random() < 0.7 else None
        scheme = Scheme(bits, size, bool(rng.random() < 0.5))
        weight = torch.from_numpy(rng.normal(rng.normal(), 3, size=(rows, columns))).float()
        weight += weight.sign()  # no group of tiny weights: float16 has few numbers there
        found = round_to_nearest(weight, scheme)
        given = {"scheme": scheme, "weight": weight}
        expect(
            [tuple(found.codes.shape), found.codes.dtype, int(found.codes.max()) < 2**bits],
            [(rows, columns), torch.uint8, True],
            call="shape and dtype of the codes, and whether all have few enough bits",
            given=given,
        )
        errors = (values_of(found.grid) - weight.double()).abs()
        chosen = errors.gather(0, found.codes.long().unsqueeze(0))[0]
        worst = float((chosen - errors.amin(dim=0)).max())
        expect.that(
            worst < 1e-5,
            "no other code stands for something nearer to a weight",
            observed=worst,
            given=given,
            call="round_to_nearest(weight, scheme)",
        )
        steps = float((chosen / found.grid.scales[:, found.grid.group_of.long()]).max())
        expect.that(
            steps < 0.5 + 2**bits / 2048,  # float16 may have made the range a bit smaller
            "a weight is off by at most half a step, as nothing lies beyond the ends",
            observed=steps,
            given=given,
            call="round_to_nearest(weight, scheme)",
        )


@pytest.mark.check(task=1, points=1, title="What it takes, and what is lost")
def test_measures():
    for rows, columns, bits, groups, middle, wanted in (
        (2, 64, 4, 2, False, (64 * 4 + 2 * 20) / 64),
        (3, 64, 4, 2, True, (64 * 4 + 2 * 16) / 64),
        (5, 21, 3, 1, False, (3 * 32 + 19) / 21),
        (1, 9, 8, 3, True, (3 * 32 + 3 * 16) / 9),
        (4, 128, 2, 4, False, (128 * 2 + 4 * 18) / 128),
    ):
        zeros = torch.full((rows, groups), 2 ** (bits - 1), dtype=torch.uint8)
        zeros[-1, -1] -= 0 if middle else 1
        grid = Grid(
            bits, torch.ones(rows, groups), zeros, torch.arange(columns) * groups // columns
        )
        weight = QuantizedWeight(torch.zeros(rows, columns, dtype=torch.uint8), grid)
        expect(
            float(bits_per_weight(weight)),
            wanted,
            call=f"bits_per_weight of [{rows}, {columns}], {bits} bits, {groups} groups a row, "
            f"{'symmetric' if middle else 'asymmetric'}",
            cause="a row has whole words of 32 bits; a scale takes 16, a zero point as many bits "
            "as a code, unless all of them are the middle code",
            rtol=1e-9,
        )
    losses = [torch.tensor([0.1, 0.3]), torch.tensor([2.0]), torch.full((5,), 0.5)]
    expect(
        float(perplexity(losses)),
        math.exp(4.9 / 8),
        call="perplexity of three texts with the losses [0.1, 0.3], [2.0], and five times 0.5",
        cause="exp of the mean over all eight tokens: a long text counts more than a short one",
        rtol=1e-6,
    )
