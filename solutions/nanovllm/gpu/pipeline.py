"""Steps planned one ahead: the host plans and reads while the device computes."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

S = TypeVar("S")  # a planned step


class Planner(Protocol[S]):
    """Decides what each step computes."""

    def plan(self) -> S | None:
        """The next step, as if every request of the one in flight went on; None: nothing to do."""

    def update(self, step: S, tokens: Sequence[int]) -> None:
        """Take a step's tokens in. A request that ended meanwhile drops its token, and its blocks
        are freed only now that no step in flight writes to them."""


class Device(Protocol[S]):
    """Runs steps in order, one after another."""

    def launch(self, step: S) -> object:
        """Start a step without waiting for it; a handle to read its tokens by."""

    def read(self, handle: object) -> Sequence[int]:
        """Wait for a step's tokens: the only place where the host waits for the device."""


class Pipeline(Generic[S]):
    """Launches step i + 1 before it reads the tokens of step i."""

    def __init__(self, planner: Planner[S], device: Device[S]) -> None:
        self.planner = planner
        self.device = device

    def run(self) -> int:
        """Work until the planner has nothing left; the number of steps."""
        steps = 0
        flying: tuple[S, object] | None = None
        while True:
            step = self.planner.plan()
            handle = self.device.launch(step) if step is not None else None
            if flying is not None:
                self.planner.update(flying[0], self.device.read(flying[1]))
            if step is None:
                if flying is None:
                    return steps
                flying = None
                continue
            steps += 1
            flying = (step, handle)
