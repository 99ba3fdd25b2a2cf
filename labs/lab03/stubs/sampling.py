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
    raise NotImplementedError("lab03 task 2: sample")
