"""What a sampler is given and what it is (given): rows of logits with what belongs to each row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from nanovllm.generation.events import Sampled
from nanovllm.generation.params import SamplingParams

Logits = Float[Tensor, "N V"]


@dataclass(frozen=True)
class SamplingRow:
    """What the sampler has to know about the sequence behind one row of logits."""

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]  # generated so far, the token about to be drawn not included
    seed: int
    eos_token_ids: Sequence[int] = ()

    @property
    def position(self) -> int:
        """Where in the sequence the token about to be drawn will stand; half of its key."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def stop_token_ids(self) -> set[int]:
        """Every id that could end this sequence."""
        return {*self.eos_token_ids, *(self.params.stop_token_ids or ())}


Sampler = Callable[[Logits, Sequence[SamplingRow]], list[Sampled]]


def argmax_sampler(logits: Logits, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """Take each row's likeliest token and ignore every parameter: enough to run the loop."""
    return [Sampled(token) for token in logits.argmax(dim=-1).tolist()]
