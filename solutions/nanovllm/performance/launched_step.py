"""What was launched for a plan, and where its tokens and logits will be."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.performance.runner import Launch


@dataclass(frozen=True)
class Launched:
    """A plan that the device is at.

    places: of each chunk that completes, in order, its token's place in `sampled`. drawn: the
    tokens are what the requests want; else they have to be drawn from the logits.
    """

    launches: tuple[Launch, ...]
    places: tuple[int, ...]
    drawn: bool

    def tokens(self) -> list[int]:
        """Wait for the tokens: the only place where the host waits for the device."""
        at: dict[int, int] = {}
        for launch in self.launches:
            at.update(enumerate(launch.read(), launch.first))
        return [at[place] for place in self.places]

    def logits(self) -> Float[Tensor, "N V"]:
        """The logits behind the tokens, in the order of `places`."""
        row_at: dict[int, int] = {}
        for launch in self.launches:
            before = len(row_at)
            row_at.update({launch.first + i: before + i for i in range(len(launch.logits))})
        rows = torch.cat([launch.logits for launch in self.launches])
        return rows[[row_at[place] for place in self.places]]
