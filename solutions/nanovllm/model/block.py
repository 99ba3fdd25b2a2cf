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

    ### BEGIN SOLUTION
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        hidden, dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(hidden, config.num_heads * dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, config.num_kv_heads * dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(config.num_heads * dim, hidden, bias=config.output_bias)
        self.q_norm = RMSNorm(dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(dim, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(
        self, x: Float[Tensor, "T E"], rotation: Rotation, attend: Attend
    ) -> Float[Tensor, "T E"]:
        tokens = x.shape[0]
        q = self.q_proj(x).view(tokens, self.num_heads, self.head_dim)  # [T, H, D]
        k = self.k_proj(x).view(tokens, self.num_kv_heads, self.head_dim)  # [T, G, D]
        v = self.v_proj(x).view(tokens, self.num_kv_heads, self.head_dim)
        q = rotation.apply(self.q_norm(q))
        k = rotation.apply(self.k_norm(k))
        out = attend(self.layer, q, k, v)
        return self.o_proj(out.reshape(tokens, self.num_heads * self.head_dim))

    ### END SOLUTION


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

    ### BEGIN SOLUTION
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        family = FAMILIES[config.family]
        self.input_layernorm = family.norm(config.hidden_size, config.norm_eps)
        self.self_attn = SelfAttention(config, layer)
        self.post_attention_layernorm = family.norm(config.hidden_size, config.norm_eps)
        self.mlp = family.mlp(config)

    def forward(
        self, x: Float[Tensor, "T E"], rotation: Rotation, attend: Attend
    ) -> Float[Tensor, "T E"]:
        x = x + self.self_attn(self.input_layernorm(x), rotation, attend)
        return x + self.mlp(self.post_attention_layernorm(x))

    ### END SOLUTION
