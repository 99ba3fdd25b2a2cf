"""What this machine does at most, measured: bytes read and operations of products, a second."""

import time
from collections.abc import Callable

import torch

from nanovllm.bench.rounds import Rounds
from nanovllm.bench.stats import median_ratio

BUFFER, SIDES, TIMES = 1 << 28, (512, 1024), 5  # bytes, more than caches hold; of products; best of


def bytes_per_second() -> float:
    """Of a sum over 256 MB, with torch's threads."""
    data = torch.ones(BUFFER // 4)
    return data.nbytes / _best(data.sum)


def flops_per_second(dtype: torch.dtype) -> float:
    """Of torch's product of square matrices: a multiply and an add are two.

    Of numbers, not of ones: where those take less power, a processor is quicker.
    """
    rates = []
    for side in SIDES:
        left, right = torch.randn(2, side, side).to(dtype)
        rates.append(2 * side**3 / _best(lambda: torch.nn.functional.linear(left, right)))  # noqa: B023 - called here
    return max(rates)


def _best(action: Callable[[], object]) -> float:
    action()
    seconds = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


class Limits:
    """Both, measured once a round beside the contestants."""

    def __init__(self, dtype: str, threads: int) -> None:
        self.dtype = getattr(torch, dtype)
        self.bytes_per_second: list[float] = []
        self.flops_per_second: list[float] = []
        torch.set_num_threads(threads)

    def look(self) -> None:
        """Measure, for the round that ends."""
        self.bytes_per_second.append(bytes_per_second())
        self.flops_per_second.append(flops_per_second(self.dtype))

    def told(self) -> dict[str, list[float]]:
        """For a record."""
        return {
            "bytes_per_second": self.bytes_per_second, "flops_per_second": self.flops_per_second
        }  # fmt: skip

    def shares(self, seconds: Rounds, bytes_: float = 0, flops: float = 0) -> dict[str, float]:
        """How much of the time of each the tighter limit explains: the median over the rounds."""
        least = [
            max(bytes_ / reads, flops / products)
            for reads, products in zip(self.bytes_per_second, self.flops_per_second, strict=True)
        ]
        return {name: median_ratio(least, its) for name, its in seconds.values.items()}
