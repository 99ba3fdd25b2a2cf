"""The links of the sampler's chain: what changes logits, the draw, and log-probabilities.

The handout's task 2 gives the interface of each function; how they share work is up to you.
"""

### BEGIN SOLUTION
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64, Real
from torch import Tensor

from nanovllm.generation import keys
from nanovllm.generation.events import Logprob
from nanovllm.generation.rows import Logits, SamplingRow


def apply_min_tokens(logits: Logits, rows: Sequence[SamplingRow]) -> Logits:
    """Set every id that could end a row to -inf while the row has under `min_tokens` tokens."""
    logits = logits.clone()
    for n, row in enumerate(rows):
        if len(row.output_token_ids) < row.params.min_tokens:
            logits[n, [t for t in row.stop_token_ids if 0 <= t < logits.shape[1]]] = -torch.inf
    return logits


def apply_logit_bias(logits: Logits, rows: Sequence[SamplingRow]) -> Logits:
    """Add each row's bias to the logits of the token ids it names."""
    logits = logits.clone()
    for n, row in enumerate(rows):
        for token_id, bias in (row.params.logit_bias or {}).items():
            logits[n, token_id] += bias
    return logits


def token_counts(token_ids: Sequence[int], vocab_size: int) -> Int64[Tensor, "V"]:
    """How often each id occurs."""
    return torch.bincount(torch.tensor(token_ids, dtype=torch.int64), minlength=vocab_size)


def apply_penalties(logits: Logits, rows: Sequence[SamplingRow]) -> Logits:
    """Push down what was already said: repetition first, then frequency and presence."""
    logits = logits.clone()
    for n, row in enumerate(rows):
        if not row.params.has_penalties:
            continue
        counts = token_counts(row.output_token_ids, logits.shape[1]).to(logits.device)
        prompt = token_counts(row.prompt_token_ids, logits.shape[1]).to(logits.device)
        scale = row.params.repetition_penalty
        repeated = torch.where(logits[n] > 0, logits[n] / scale, logits[n] * scale)
        logits[n] = torch.where(counts + prompt > 0, repeated, logits[n])
        logits[n] -= row.params.frequency_penalty * counts
        logits[n] -= row.params.presence_penalty * (counts > 0)
    return logits


def apply_temperature(logits: Logits, temperature: Real[Tensor, "N"]) -> Logits:
    """Divide each row by its temperature; a row of temperature 0 is left as it is."""
    return logits / torch.where(temperature == 0, 1.0, temperature)[:, None]


def apply_min_p(logits: Logits, min_p: Real[Tensor, "N"]) -> Logits:
    """Set to -inf every token less likely than `min_p` times the row's likeliest."""
    probs = logits.softmax(dim=-1)
    floor = min_p[:, None] * probs.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probs < floor, -torch.inf)


def apply_top_k(logits: Logits, top_k: Int64[Tensor, "N"]) -> Logits:
    """Keep each row's k largest logits, with all that tie with the k-th; 0 keeps all."""
    vocab_size = logits.shape[-1]
    k = torch.where(top_k == 0, vocab_size, top_k.clamp(max=vocab_size))
    ordered = logits.sort(dim=-1, descending=True).values
    kth = ordered.gather(-1, k[:, None] - 1)
    return logits.masked_fill(logits < kth, -torch.inf)


def apply_top_p(logits: Logits, top_p: Real[Tensor, "N"]) -> Logits:
    """Keep the smallest set of likeliest tokens whose probabilities reach `top_p`."""
    ordered, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs  # the mass of everything likelier
    dropped = (before >= top_p[:, None]) & (top_p[:, None] < 1)
    dropped[:, 0] = False
    return logits.masked_fill(dropped.scatter(-1, token_ids, dropped), -torch.inf)


def draw(
    logits: Logits, seeds: Int64[Tensor, "N"], positions: Int64[Tensor, "N"]
) -> Int64[Tensor, "N"]:
    """Draw one token a row from softmax(logits) with the key (seed, position)."""
    u = keys.uniform(seeds, positions, logits.shape[-1])
    return (logits.to(u) - torch.log(-torch.log(u))).argmax(dim=-1)


def gather_logprobs(
    logits: Float[Tensor, "V"], token_id: int, num_logprobs: int
) -> dict[int, Logprob]:
    """The chosen token's log-probability, then the `num_logprobs` likeliest tokens' (-1: all)."""
    logprobs = logits.float().log_softmax(dim=-1)
    rank = int((logprobs >= logprobs[token_id]).sum())
    found = {token_id: Logprob(float(logprobs[token_id]), rank)}
    count = len(logprobs) if num_logprobs == -1 else min(num_logprobs, len(logprobs))
    values, token_ids = logprobs.topk(count)
    for rank, (t, value) in enumerate(zip(token_ids.tolist(), values.tolist(), strict=True), 1):
        found.setdefault(t, Logprob(value, rank))
    return found


### END SOLUTION
