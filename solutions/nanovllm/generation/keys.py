"""Random numbers by counting: a pure function of (seed, position, token id), with no state.

Source: SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def sample_seed(seed: int, index: int) -> int:
    """The seed of sample `index` of a request with n samples; sample 0 keeps the request's own.

    >>> sample_seed(7, 0), sample_seed(7, 1) == sample_seed(8, 0)
    (7, False)
    """
    return seed if index == 0 else _signed(_mix_int((seed + index * _GOLDEN) & _MASK))


def uniform(
    seeds: Int64[Tensor, "N"], positions: Int64[Tensor, "N"], width: int
) -> Float64[Tensor, "N V"]:
    """Uniform numbers in the open interval (0, 1), one for each row and token id.

    A row depends on its own seed and position alone: not on the other rows, not on the
    order of calls.

    >>> alone = uniform(torch.tensor([5]), torch.tensor([9]), 4)
    >>> beside = uniform(torch.tensor([1, 5]), torch.tensor([0, 9]), 4)
    >>> torch.equal(alone[0], beside[1])
    True
    """
    tokens = torch.arange(1, width + 1, dtype=torch.int64, device=seeds.device)
    rows = _mix(_mix(seeds + _signed(_GOLDEN)) + positions * _signed(_GOLDEN))
    bits = _mix(rows[:, None] + tokens * _signed(_GOLDEN))
    return (_shift(bits, 12).to(torch.float64) + 0.5) * 2.0**-52  # never 0, never 1


def key_tensors(
    seeds: Sequence[int], positions: Sequence[int], device: torch.device
) -> tuple[Int64[Tensor, "N"], Int64[Tensor, "N"]]:
    """Seeds (integers of any size) and positions as tensors, where `uniform` can work on them.

    >>> key_tensors([-1, 2**64 - 1], [3, 4], torch.device("cpu"))
    (tensor([-1, -1]), tensor([3, 4]))
    """
    if device.type == "mps":  # has no float64
        device = torch.device("cpu")
    wrapped = [_signed(seed & _MASK) for seed in seeds]
    return torch.tensor(wrapped, device=device), torch.tensor(list(positions), device=device)


def _shift(x: Tensor, count: int) -> Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift(x, 27)) * _signed(_MIX_2)
    return x ^ _shift(x, 31)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
