"""The numbers of one answer: speed, time to first token, KV cache in use."""

import time
from collections.abc import Callable

from rich.text import Text

from nanovllm.cli.begun import Begun
from nanovllm.outputs import StreamOutput

_BAR = 5  # cells


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f}" if count >= 1e5 else f"{count / 1e6:.2f}"


class Meter:
    """Speed, time to first token and KV cache in use, from the steps of one stream."""

    def __init__(
        self, capacity: int, bytes_per_token: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.capacity, self.bytes_per_token, self.clock = capacity, bytes_per_token, clock
        self.start, self.first, self.last = clock(), None, None
        self.tokens = self.kv_tokens = self.cached = 0
        self.note = ""
        self.begun: Begun | None = None  # where the process began for this answer

    def push(self, step: StreamOutput) -> None:
        if step.token_ids:
            self.last = self.clock()
            self.first = self.last if self.first is None else self.first
            self.tokens += len(step.token_ids)
        self.kv_tokens = step.kv_tokens or self.kv_tokens
        if step.output is not None:
            self.cached = step.output.num_cached_tokens

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first one, which the prompt's length decides."""
        if self.first is None or self.last is None or self.tokens < 2 or self.last == self.first:
            return None
        return (self.tokens - 1) / (self.last - self.first)

    def fields(self, bar: str = "", unit: str = " tokens") -> list[str]:
        """What there is to tell, the most important first."""
        if self.first is None:
            return [f"reading the prompt, {self.clock() - self.start:.1f} s"]
        rate = "-" if self.rate is None else f"{self.rate:.{0 if self.rate >= 100 else 1}f}"
        used, whole = self.kv_tokens, self.capacity
        per_token = self.bytes_per_token
        return [
            *([self.note] if self.note else []),
            f"{self.tokens} tokens",
            f"{rate} tokens/s",
            f"TTFT {1000 * (self.first - self.start):.0f} ms",
            f"KV cache {bar}{used}/{whole}{unit}",
            f"{megabytes(used * per_token)}/{megabytes(whole * per_token)} MB",
            *([f"{self.cached} prompt tokens from the cache"] if self.cached else []),
            *([self.begun.tell(self.first)] if self.begun else []),
        ]

    def plain(self) -> str:
        return ", ".join(self.fields())

    def line(self, width: int) -> Text:
        """Return the status in one row; what does not fit in `width` cells is left out."""
        full = max(1, round(min(1.0, self.kv_tokens / max(1, self.capacity)) * _BAR))
        text = Text(style="dim", no_wrap=True, overflow="ellipsis")
        for field in self.fields("█" * full + "░" * (_BAR - full) + " ", ""):
            piece = f" · {field}" if text else field
            if text and len(text) + len(piece) >= width:
                break
            text.append(piece)
        return text
