"""From rows of logits to one token each: `sample` runs the chain of chain.py in vLLM's order.

Source: vllm/v1/sample/sampler.py of vLLM 0.32.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nanovllm.generation import chain
from nanovllm.generation.events import Sampled
from nanovllm.generation.keys import key_tensors
from nanovllm.generation.rows import Logits, Sampler, SamplingRow, argmax_sampler

__all__ = ["Logits", "Sampler", "SamplingRow", "argmax_sampler", "sample"]


def sample(logits: Logits, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """Choose one token for each row of logits; what a row gets does not depend on the others.

    In float32 or finer: min_tokens, logit bias, penalties; a row of temperature 0 takes its
    largest logit there. Every other row goes on with temperature, min-p, top-k, top-p, and is
    drawn with the key (seed, position) of the row. `logprobs` are None unless the row's parameters
    ask for them; they come from the logits as given. The logits given are not changed.

    >>> from nanovllm.generation.params import SamplingParams
    >>> row = SamplingRow(SamplingParams(temperature=0), [5], [], seed=0)
    >>> sample(torch.tensor([[1.0, 2.0]]), [row])
    [Sampled(token_id=1, logprobs=None)]
    """
    ### BEGIN SOLUTION
    params = [row.params for row in rows]
    processed = logits.float()
    if any(len(row.output_token_ids) < row.params.min_tokens for row in rows):
        processed = chain.apply_min_tokens(processed, rows)
    if any(p.logit_bias for p in params):
        processed = chain.apply_logit_bias(processed, rows)
    if any(p.has_penalties for p in params):
        processed = chain.apply_penalties(processed, rows)
    tokens = processed.argmax(dim=-1)
    if not all(p.greedy for p in params):

        def column(values: list) -> Tensor:
            return torch.tensor(values, device=logits.device)

        shaped = chain.apply_temperature(processed, column([p.temperature for p in params]))
        if any(p.min_p for p in params):
            shaped = chain.apply_min_p(shaped, column([p.min_p for p in params]))
        if any(p.top_k for p in params):
            shaped = chain.apply_top_k(shaped, column([p.top_k for p in params]))
        if any(p.top_p < 1 for p in params):
            shaped = chain.apply_top_p(shaped, column([p.top_p for p in params]))
        keys = key_tensors([r.seed for r in rows], [r.position for r in rows], logits.device)
        drawn = chain.draw(shaped, *keys).to(tokens.device)
        tokens = torch.where(column([p.greedy for p in params]), tokens, drawn)
    found = zip(tokens.tolist(), logits, params, strict=True)
    return [
        Sampled(
            token, None if p.logprobs is None else chain.gather_logprobs(raw, token, p.logprobs)
        )
        for token, raw, p in found
    ]
    ### END SOLUTION
