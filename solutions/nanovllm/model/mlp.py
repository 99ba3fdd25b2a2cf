"""The part of a block that works on each token alone."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nanovllm.model.config import ModelConfig


class SwiGLU(nn.Module):
    """Llama's MLP: one projection decides how much of the other passes (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Float[Tensor, "T E"]) -> Float[Tensor, "T E"]:
        """down(silu(gate(x)) * up(x)), with silu(z) = z / (1 + exp(-z)).

        >>> import torch
        >>> mlp = SwiGLU(ModelConfig("llama", 8, 4, 1, 2, 2, 2, 6, 16))
        >>> mlp(torch.zeros(3, 4)).abs().sum().item()
        0.0
        """
        ### BEGIN SOLUTION
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        ### END SOLUTION


class GeluMLP(nn.Module):
    """GPT-2's MLP: up, GELU (its tanh form), down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Float[Tensor, "T E"]) -> Float[Tensor, "T E"]:
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))
