"""What a request may have to do with a transfer, besides K and V that came (given)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Decodes:
    """Somebody else decodes: when the prompt is computed, its K and V are parked by this name."""

    transfer_id: str
