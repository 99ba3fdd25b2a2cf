"""What happens while requests run, from their events: times of each one, and a progress bar."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from nanovllm.generation.events import Event, Finished, TokenGenerated
from nanovllm.outputs import RequestMetrics

Clock = Callable[[], float]
UseTqdm = bool | Callable[..., Any]
_REDRAW_SECONDS = 0.1


class Tracker:
    """Follows requests that were all there at the start; takes every event of theirs."""

    def __init__(
        self, samples: Mapping[int, int], use_tqdm: UseTqdm, clock: Clock = time.perf_counter
    ) -> None:
        """Begin with the number of samples of each request id."""
        self.clock, self.arrival = clock, clock()
        self.open = dict(samples)
        self.tokens = dict.fromkeys(samples, 0)
        self.first: dict[int, float] = {}
        self.last = dict.fromkeys(samples, self.arrival)
        self.generated = 0
        self.bar = _make_bar(len(samples), use_tqdm)
        self.drawn = self.arrival

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, event: Event) -> None:
        request = event.request_id
        self.last[request] = event.time
        if isinstance(event, TokenGenerated):
            self._count(request, 1)
            self.first.setdefault(request, event.time)
            self._show_speed()
        elif isinstance(event, Finished):
            self._end_sample(request)

    def add(self, request: int, tokens: int) -> None:
        """Count a request that gives no events as done, with its tokens."""
        self.last[request] = self.clock()
        self._count(request, tokens)
        self._end_sample(request)
        self._show_speed()

    def metrics(self, request: int, prompt_tokens: int, cached: int = 0) -> RequestMetrics:
        """Return what a request cost; its time counts from the call, waiting included."""
        first = self.first.get(request)
        return RequestMetrics(
            ttft=None if first is None else first - self.arrival,
            latency=self.last[request] - self.arrival,
            prompt_tokens=prompt_tokens,
            generation_tokens=self.tokens[request],
            cached_tokens=cached,
        )

    def _count(self, request: int, tokens: int) -> None:
        self.tokens[request] += tokens
        self.generated += tokens

    def _end_sample(self, request: int) -> None:
        self.open[request] -= 1
        if not self.open[request] and self.bar is not None:
            self.bar.update(1)

    def _show_speed(self) -> None:
        now = self.clock()
        if self.bar is not None and now - self.drawn >= _REDRAW_SECONDS:
            self.drawn = now
            self.bar.set_postfix_str(f"{self.generated / (now - self.arrival):.1f} tokens/s")


def _make_bar(total: int, use_tqdm: UseTqdm) -> Any:
    if not use_tqdm or not total:
        return None
    if callable(use_tqdm):
        return use_tqdm(total=total, desc="Processed prompts")
    from tqdm.auto import tqdm

    return tqdm(total=total, desc="Processed prompts", dynamic_ncols=True)
