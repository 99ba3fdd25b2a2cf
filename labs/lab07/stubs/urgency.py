"""Priority and deadline on their way past an AsyncEngine, which knows of neither (given)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nanovllm.generation.params import SamplingParams


class WithUrgency:
    """An engine whose requests are as urgent as `saying` says while they are submitted.

    Requests are submitted in the event loop's thread, without an await in between.
    """

    def __init__(self, engine: Any) -> None:
        self._engine, self._more = engine, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def saying(self, priority: int | None, deadline: float | None) -> Iterator[None]:
        """What is submitted meanwhile has these; None is not said."""
        said = priority is not None or deadline is not None
        self._more = {"priority": priority or 0, "deadline": deadline} if said else {}
        try:
            yield
        finally:
            self._more = {}

    def add_request(
        self, prompt_token_ids: Sequence[int], params: SamplingParams | None = None
    ) -> int:
        """As the engine's."""
        return self._engine.add_request(prompt_token_ids, params, **self._more)
