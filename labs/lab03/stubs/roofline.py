"""The roofline: why prefill waits for arithmetic and decode waits for memory.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from dataclasses import dataclass
from typing import Literal

from nanovllm.model.accounting import step_bytes, step_flops
from nanovllm.model.config import ModelConfig


@dataclass(frozen=True)
class Hardware:
    """The two limits of a machine."""

    name: str
    flops_per_second: float
    bytes_per_second: float

    @property
    def ridge(self) -> float:
        """Operations per byte at which both limits are reached together.

        >>> Hardware("toy", flops_per_second=600.0, bytes_per_second=20.0).ridge
        30.0
        """
        return self.flops_per_second / self.bytes_per_second

    def attainable(self, intensity: float) -> float:
        """Operations per second that work of this intensity (operations per byte) can reach.

        >>> toy = Hardware("toy", flops_per_second=600.0, bytes_per_second=20.0)
        >>> toy.attainable(10.0), toy.attainable(100.0)
        (200.0, 600.0)
        """
        raise NotImplementedError("lab03 task 6: Hardware.attainable")


# Dense bf16 (CPU: float32) peaks from the vendors' data sheets; the CPU is a rough laptop.
H100 = Hardware("H100 SXM", 989e12, 3.35e12)
A100 = Hardware("A100 80GB SXM", 312e12, 2.04e12)
LAPTOP = Hardware("laptop CPU", 0.5e12, 50e9)


@dataclass(frozen=True)
class Work:
    """One step's operations and the bytes it moves."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes


def step_work(
    config: ModelConfig,
    rows: int,
    new_tokens: int,
    cached_tokens: int = 0,
    dtype_bytes: int = 2,
) -> Work:
    """The work of one step of `rows` equal sequences, one row of logits each.

    The weights are moved once for all rows; K and V are each row's own.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> step_work(config, 1, 1, 2), step_work(config, 8, 1, 2)
    (Work(flops=360, bytes=336), Work(flops=2880, bytes=504))
    """
    raise NotImplementedError("lab03 task 6: step_work")


def least_seconds(work: Work, hardware: Hardware) -> float:
    """The shortest time that both limits allow.

    >>> least_seconds(Work(flops=1200, bytes=20), Hardware("toy", 600.0, 20.0))
    2.0
    """
    raise NotImplementedError("lab03 task 6: least_seconds")


def bound_by(work: Work, hardware: Hardware) -> Literal["compute", "memory"]:
    """Which limit is reached first; at the ridge itself, compute.

    >>> bound_by(Work(flops=1200, bytes=20), Hardware("toy", 600.0, 20.0))
    'compute'
    """
    raise NotImplementedError("lab03 task 6: bound_by")


def compute_bound_batch(
    config: ModelConfig,
    hardware: Hardware,
    cached_tokens: int,
    dtype_bytes: int = 2,
    largest: int = 65536,
) -> int | None:
    """The fewest decoding rows whose step is bound by compute; None if that needs over `largest`.

    None is common: a row brings its own K and V to read, so with a long context no batch is
    large enough.

    >>> config = ModelConfig("llama", 9, 4, 1, 2, 1, 2, 6, 16)
    >>> compute_bound_batch(config, Hardware("toy", 600.0, 200.0), cached_tokens=2)
    4
    """
    raise NotImplementedError("lab03 task 6: compute_bound_batch")
