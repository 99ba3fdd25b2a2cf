"""The server's settings: frozen and checked (given)."""

from dataclasses import dataclass


class ServeConfigError(ValueError):
    """A setting of the server that cannot be honoured."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """How the server admits requests, and who may ask.

    model_name: the name that clients ask for. api_keys: empty means that everybody may ask.
    max_queue: samples that may wait beyond the `max_num_seqs` that run; more get a 503.
    rate_limit: tokens a minute for each key, prompt and answer counted; None for no limit.
    timeout: seconds after which a request gets what there is so far; None for no limit.
    drain_timeout: seconds that open requests are given when the server is told to stop.
    max_body_bytes: the largest request body. allowed_origins: the web pages (such as
    "https://chat.example.com") whose scripts may ask; "*" for all.

    >>> ServeConfig(max_queue=-1)
    Traceback (most recent call last):
    nanovllm.serving.config.ServeConfigError: max_queue must be at least 0, got -1.
    """

    model_name: str = "nanovllm"
    api_keys: tuple[str, ...] = ()
    max_queue: int = 256
    rate_limit: int | None = None
    timeout: float | None = 600.0
    drain_timeout: float = 30.0
    max_body_bytes: int = 4 * 1024 * 1024
    allowed_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_queue < 0:
            raise ServeConfigError(f"max_queue must be at least 0, got {self.max_queue}.")
        for name in ("rate_limit", "timeout", "drain_timeout", "max_body_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ServeConfigError(f"{name} must be greater than 0, got {value}.")
        if not all(self.api_keys):
            raise ServeConfigError("an API key must not be empty.")
