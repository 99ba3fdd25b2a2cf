"""The Qwen3 network in plain PyTorch, with the parameter names of transformers.

Training through this module instead of transformers' own is faster on a CPU, and lets positions
skip ahead (see rows.py), which transformers would take for the start of another document.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; the letters are those of the course."""

    E: int
    L: int
    H: int
    G: int
    D: int
    mlp: int
    vocabulary: int = 2048
    context: int = 1024
    theta: float = 10000.0
    eps: float = 1e-6


TARGET = Shape(E=256, L=4, H=8, G=4, D=32, mlp=768)
DRAFT = Shape(E=128, L=2, H=4, G=2, D=32, mlp=384)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [batch, heads, T, D]; each half is the other's partner."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    """Causal grouped-query attention with normalised queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        E, H, G, D = shape.E, shape.H, shape.G, shape.D
        self.q_proj = nn.Linear(E, H * D, bias=False)
        self.k_proj = nn.Linear(E, G * D, bias=False)
        self.v_proj = nn.Linear(E, G * D, bias=False)
        self.o_proj = nn.Linear(H * D, E, bias=False)
        self.q_norm = nn.RMSNorm(D, eps=shape.eps)
        self.k_norm = nn.RMSNorm(D, eps=shape.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [batch, T, E] to [batch, T, E]."""
        batch, T, _ = x.shape
        H, G, D = self.shape.H, self.shape.G, self.shape.D
        q = self.q_norm(self.q_proj(x).view(batch, T, H, D)).transpose(1, 2)  # [batch, H, T, D]
        k = self.k_norm(self.k_proj(x).view(batch, T, G, D)).transpose(1, 2)
        v = self.v_proj(x).view(batch, T, G, D).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(H // G, dim=1), v.repeat_interleave(H // G, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, T, H * D))


class MLP(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.E, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.E, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.E, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, T, E] to [batch, T, E]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = nn.RMSNorm(shape.E, eps=shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.E, eps=shape.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [batch, T, E] to [batch, T, E]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and the last norm."""

    inverse: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.E)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.L))
        self.norm = nn.RMSNorm(shape.E, eps=shape.eps)
        inverse = shape.theta ** (-torch.arange(0, shape.D, 2) / shape.D)
        self.register_buffer("inverse", inverse, persistent=False)

    def forward(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Map [batch, T] to hidden states [batch, T, E]."""
        angles = positions[:, None, :, None] * self.inverse  # [batch, 1, T, D / 2]
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        x = self.embed_tokens(token_ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Network(nn.Module):
    """The language model; the output matrix is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5 / 2)

    def forward(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Map [batch, T] to logits [batch, T, V]."""
        return F.linear(self.model(token_ids, positions), self.model.embed_tokens.weight)
