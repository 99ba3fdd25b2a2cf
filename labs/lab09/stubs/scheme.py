"""How a weight is to be quantized: bits, groups, symmetric or not (given)."""

from dataclasses import dataclass

from nanovllm.quantization.errors import QuantizationError

BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class Scheme:
    """bits of a code; group_size: columns of a row that share a scale, None for the whole row.

    symmetric: the zero point is the middle code, and only scales are stored.

    >>> Scheme(bits=5)
    Traceback (most recent call last):
    nanovllm.quantization.errors.QuantizationError: bits must be one of 2, 3, 4, 8; got 5.
    """

    bits: int = 4
    group_size: int | None = 64
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            known = ", ".join(map(str, BITS))
            raise QuantizationError(f"bits must be one of {known}; got {self.bits!r}.")
        size = self.group_size
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise QuantizationError(
                f"group_size must be a whole number, at least 1, or None for whole rows; "
                f"got {size!r}."
            )
