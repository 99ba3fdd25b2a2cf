"""One layer of the model: attention, then the MLP, each added to the residual stream."""

from jaxtyping import Float
from torch import Tensor, nn

from nanovllm.model.attend import Attend
from nanovllm.model.config import ModelConfig
from nanovllm.model.norms import RMSNorm
from nanovllm.model.positions import Rotation
from nanovllm.model.registry import FAMILIES


class SelfAttention(nn.Module):
    """`SelfAttention(config, layer)`; called as `(x [T, E], rotation, attend)`, it gives [T, E].

    `attend(layer, q [T,H,D], k [T,G,D], v [T,G,D])` is called once: q and k have been through
    `rotation.apply`, v has not. Its answer [T, H, D], perhaps a view with strides of its own,
    goes through `o_proj`, the heads of a token side by side.

    Modules, `nn.Linear` each: `q_proj` from E to H*D, `k_proj` and `v_proj` from E to G*D (biased
    where `config.qkv_bias`), `o_proj` from H*D to E (biased where `config.output_bias`). Where
    `config.qk_norm` holds, also `q_norm` and `k_norm`, each an `RMSNorm` over D that every head of
    q or k goes through before the rotation; elsewhere they are `nn.Identity`.

    >>> import torch
    >>> from nanovllm.model.positions import NoRotation
    >>> config = ModelConfig("llama", 8, 4, 1, 2, 1, 6, 6, 16)
    >>> shapes = lambda layer, q, k, v: print(layer, q.shape, k.shape) or q
    >>> SelfAttention(config, layer=3)(torch.zeros(5, 4), NoRotation(), shapes).shape
    3 torch.Size([5, 2, 6]) torch.Size([5, 1, 6])
    torch.Size([5, 4])
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab02 task 4: SelfAttention")


class DecoderBlock(nn.Module):
    """`DecoderBlock(config, layer)`; called as `(x [T, E], rotation, attend)`, it gives [T, E].

    Two sublayers, each with a norm of its own. A sublayer reads the normed stream, and its result
    is added to the stream as it was before that norm: first attention, then the MLP.

    Modules: `self_attn`, and the family's own classes (`FAMILIES[config.family]`):
    `input_layernorm` and `post_attention_layernorm`, each `norm(E, config.norm_eps)`, and `mlp`,
    which is `mlp(config)`.

    >>> import torch
    >>> from nanovllm.model.positions import NoRotation
    >>> block = DecoderBlock(ModelConfig("llama", 8, 4, 1, 2, 2, 2, 6, 16), layer=0)
    >>> x = torch.zeros(3, 4)
    >>> bool((block(x, NoRotation(), lambda layer, q, k, v: q) == x).all())
    True
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab02 task 4: DecoderBlock")
