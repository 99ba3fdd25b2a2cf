"""What a process takes until its first token, torch's own import beside it."""

import time
from dataclasses import dataclass

_BEGUN = time.perf_counter()  # with the first imports of the command


@dataclass(frozen=True)
class Begun:
    """When the process began, and what torch took since; seconds of `time.perf_counter`."""

    at: float
    torch: float

    def tell(self, first: float) -> str:
        """What a first token at this moment took.

        >>> Begun(at=10.0, torch=1.5).tell(12.0)
        'first token 0.5 s + 1.5 s of torch after the start'
        """
        rest = first - self.at - self.torch
        return f"first token {rest:.1f} s + {self.torch:.1f} s of torch after the start"


def with_torch() -> Begun:
    """Import torch, and say how long that took."""
    before = time.perf_counter()
    import torch  # noqa: F401

    return Begun(_BEGUN, time.perf_counter() - before)
