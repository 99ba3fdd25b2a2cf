"""The whole model: embed, L blocks, a last norm; logits only for the rows that need them."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.attend import Attend
from nanovllm.model.block import DecoderBlock
from nanovllm.model.config import ModelConfig
from nanovllm.model.registry import FAMILIES


class Transformer(nn.Module):
    """`Transformer(config)`: a decoder that does not know how K and V are stored.

    `model(token_ids [T], positions [T], attend)` gives the hidden states [T, E] after the last
    norm. The tokens may be a prompt, a chunk of one, a single new token, or (from lab 04 on) those
    of several requests: row t stands at positions[t], and rows meet in `attend` alone.
    `model.logits(hidden [N, E])` gives [N, V], the score of each token of the vocabulary, for N
    rows of such hidden states: their product with `lm_head`, or with the embedding in a tied model.

    Attribute: `config`. Modules: `embed_tokens`, an `nn.Embedding`; `positions`, the family's
    `positions(config)`; `layers`, an `nn.ModuleList` of L `DecoderBlock`s; `norm`, the family's;
    and, unless `config.tie_embeddings`, `lm_head`, an `nn.Linear` from E to V without bias.

    >>> import torch
    >>> from nanovllm.model.attend import RecomputeAttend
    >>> model = Transformer(ModelConfig("qwen3", 9, 4, 1, 2, 1, 6, 8, 16, qk_norm=True))
    >>> ids, positions = torch.tensor([1, 2, 3]), torch.arange(3)
    >>> hidden = model(ids, positions, RecomputeAttend(model.config))
    >>> hidden.shape, model.logits(hidden[-1:]).shape
    (torch.Size([3, 4]), torch.Size([1, 9]))
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab02 task 5: Transformer")
