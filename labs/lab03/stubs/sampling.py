"""From logits to a token: a chain of pure functions, in vLLM's order.

raw log-probabilities -> min_tokens -> logit bias -> penalties -> (greedy: argmax here) ->
temperature -> min-p -> top-k -> top-p -> draw by key. Each function takes logits [N, V] and
returns new ones; a row with a neutral parameter comes back unchanged.

Source: vllm/v1/sample/sampler.py of vLLM 0.32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from nanovllm.generation.events import Logprob, Sampled
from nanovllm.generation.keys import key_tensors, uniform
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
        return {*self.eos_token_ids, *self.params.stop_token_ids}


Sampler = Callable[[Logits, Sequence[SamplingRow]], list[Sampled]]


def argmax_sampler(logits: Logits, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """Take each row's likeliest token and ignore every parameter: enough to run the loop."""
    return [Sampled(token) for token in logits.argmax(dim=-1).tolist()]


def apply_min_tokens(logits: Logits, rows: Sequence[SamplingRow]) -> Logits:
    """Set every id that could end a row to -inf while the row has under `min_tokens` tokens.

    End-of-sequence ids and stop_token_ids alike; ids outside the vocabulary are ignored.

    >>> row = SamplingRow(SamplingParams(min_tokens=1), [5], [], seed=0, eos_token_ids=[2])
    >>> apply_min_tokens(torch.zeros(1, 3), [row])
    tensor([[0., 0., -inf]])
    """
    raise NotImplementedError("lab03 task 2: apply_min_tokens")


def apply_logit_bias(logits: Logits, rows: Sequence[SamplingRow]) -> Logits:
    """Add each row's bias to the logits of the token ids it names, before any softmax.

    >>> row = SamplingRow(SamplingParams(logit_bias={1: 2.5}), [5], [], seed=0)
    >>> apply_logit_bias(torch.zeros(1, 3), [row])
    tensor([[0.0000, 2.5000, 0.0000]])
    """
    raise NotImplementedError("lab03 task 2: apply_logit_bias")


def token_counts(token_ids: Sequence[int], vocab_size: int) -> Int64[Tensor, "V"]:
    """How often each id occurs.

    >>> token_counts([2, 0, 2], 4)
    tensor([1, 0, 2, 0])
    """
    return torch.bincount(torch.tensor(token_ids, dtype=torch.int64), minlength=vocab_size)


def apply_penalties(logits: Logits, rows: Sequence[SamplingRow]) -> Logits:
    """Push down what was already said: repetition first, then frequency, then presence.

    repetition_penalty r: for ids in the prompt or the output, logit / r where it is positive,
    logit * r where it is not. frequency_penalty f: minus f for each time in the output.
    presence_penalty: minus it once for ids in the output. The last two do not see the prompt.

    >>> params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5)
    >>> row = SamplingRow(params, [0], [1, 1], seed=0)
    >>> apply_penalties(torch.tensor([[4.0, -1.0, 3.0]]), [row])
    tensor([[ 2., -3.,  3.]])
    """
    raise NotImplementedError("lab03 task 2: apply_penalties")


def apply_temperature(logits: Logits, temperature: Float32[Tensor, "N"]) -> Logits:
    """Divide each row by its temperature; a row of temperature 0 is left as it is.

    >>> apply_temperature(torch.ones(2, 2), torch.tensor([0.5, 0.0]))
    tensor([[2., 2.],
            [1., 1.]])
    """
    raise NotImplementedError("lab03 task 2: apply_temperature")


def apply_min_p(logits: Logits, min_p: Float32[Tensor, "N"]) -> Logits:
    """Set to -inf every token less likely than `min_p` times the row's likeliest.

    >>> apply_min_p(torch.tensor([[0.6, 0.3, 0.1]]).log(), torch.tensor([0.4])).exp()
    tensor([[0.6000, 0.3000, 0.0000]])
    """
    raise NotImplementedError("lab03 task 2: apply_min_p")


def apply_top_k(logits: Logits, top_k: Int64[Tensor, "N"]) -> Logits:
    """Keep each row's k largest logits and set the rest to -inf; 0 keeps all.

    Ties: every token equal to the k-th largest is kept, so more than k may remain. A k above
    the vocabulary keeps all.

    >>> apply_top_k(torch.tensor([[3.0, 1.0, 2.0, 2.0]]), torch.tensor([2]))
    tensor([[3., -inf, 2., 2.]])
    """
    raise NotImplementedError("lab03 task 2: apply_top_k")


def apply_top_p(logits: Logits, top_p: Float32[Tensor, "N"]) -> Logits:
    """Keep the smallest set of likeliest tokens whose probabilities reach `top_p`.

    The token that crosses p is kept, so at least one remains. Among equal logits the lower id
    counts as likelier. 1 keeps all. Source: Holtzman et al., arXiv 1904.09751.

    >>> apply_top_p(torch.tensor([[0.2, 0.5, 0.3]]).log(), torch.tensor([0.6])).exp()
    tensor([[0.0000, 0.5000, 0.3000]])
    """
    raise NotImplementedError("lab03 task 2: apply_top_p")


def draw(
    logits: Logits, seeds: Int64[Tensor, "N"], positions: Int64[Tensor, "N"]
) -> Int64[Tensor, "N"]:
    """Draw one token a row from softmax(logits) with the key (seed, position).

    The Gumbel-max trick: argmax of logits - log(-log(u)) in float64, u = uniform(seeds,
    positions, V). No sum is taken, so none can be inexact, and no generator keeps state.

    >>> key = torch.tensor([7]), torch.tensor([3])
    >>> int(draw(torch.tensor([[0.0, -torch.inf, -torch.inf]]), *key))
    0
    """
    raise NotImplementedError("lab03 task 2: draw")


def gather_logprobs(
    logits: Float[Tensor, "V"], token_id: int, num_logprobs: int
) -> dict[int, Logprob]:
    """The chosen token's log-probability, then the `num_logprobs` likeliest tokens' (-1: all).

    Computed from the raw logits, before bias, penalties and temperature, as is vLLM's default
    ("raw_logprobs"). The likeliest tokens have ranks 1, 2, 3, ...; the chosen token's rank is
    the number of tokens at least as likely as it, also where it is one of the likeliest.

    >>> gather_logprobs(torch.tensor([0.5, 0.25, 0.25]).log(), 0, 0)
    {0: Logprob(logprob=-0.6931471824645996, rank=1)}
    """
    raise NotImplementedError("lab03 task 2: gather_logprobs")


def process_logits(logits: Logits, rows: Sequence[SamplingRow]) -> Float32[Tensor, "N V"]:
    """Apply what changes even the greedy choice: min_tokens, logit bias, penalties (given).

    >>> row = SamplingRow(SamplingParams(), [5], [], seed=0)
    >>> process_logits(torch.zeros(1, 3, dtype=torch.bfloat16), [row])
    tensor([[0., 0., 0.]])
    """
    logits = logits.float()
    if any(len(row.output_token_ids) < row.params.min_tokens for row in rows):
        logits = apply_min_tokens(logits, rows)
    if any(row.params.logit_bias for row in rows):
        logits = apply_logit_bias(logits, rows)
    if any(row.params.has_penalties for row in rows):
        logits = apply_penalties(logits, rows)
    return logits


def truncate_logits(logits: Logits, rows: Sequence[SamplingRow]) -> Logits:
    """Apply what shapes a random draw: temperature, min-p, top-k, top-p (given).

    >>> row = SamplingRow(SamplingParams(temperature=0.5, top_k=1), [5], [], seed=0)
    >>> truncate_logits(torch.tensor([[1.0, 2.0]]), [row])
    tensor([[-inf, 4.]])
    """
    params = [row.params for row in rows]
    logits = apply_temperature(logits, _column(logits, [p.temperature for p in params]))
    if any(p.min_p for p in params):
        logits = apply_min_p(logits, _column(logits, [p.min_p for p in params]))
    if any(p.top_k for p in params):
        logits = apply_top_k(logits, _column(logits, [p.top_k for p in params]).long())
    if any(p.top_p < 1 for p in params):
        logits = apply_top_p(logits, _column(logits, [p.top_p for p in params]))
    return logits


def sample(logits: Logits, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """Draw one token for each row of logits; a row's draw does not depend on its batch mates.

    >>> row = SamplingRow(SamplingParams(temperature=0), [5], [], seed=0)
    >>> sample(torch.tensor([[1.0, 2.0]]), [row])
    [Sampled(token_id=1, logprobs=None)]
    """
    raise NotImplementedError("lab03 task 2: sample")


def _keys(
    rows: Sequence[SamplingRow], device: torch.device
) -> tuple[Int64[Tensor, "N"], Int64[Tensor, "N"]]:
    return key_tensors([row.seed for row in rows], [row.position for row in rows], device)


def _column(logits: Logits, values: Sequence[float]) -> Float32[Tensor, "N"]:
    return torch.tensor(values, dtype=torch.float32, device=logits.device)


def _logprobs(
    logits: Float[Tensor, "V"], token_id: int, params: SamplingParams
) -> dict[int, Logprob] | None:
    return None if params.logprobs is None else gather_logprobs(logits, token_id, params.logprobs)
