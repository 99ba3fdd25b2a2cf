"""What a profile is made of: something that ran from one moment to another (given)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """`name` ran on `track` from `start` to `end`, in seconds; end is at least start.

    track: "engine" for the engine's steps and their parts, "host" for operations as Python calls
    them, "device" for kernels. flops, bytes: what it computed and moved, where that is known.
    """

    name: str
    start: float
    end: float
    track: str = "host"
    flops: int = 0
    bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start
