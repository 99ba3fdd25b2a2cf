"""The part of a block that works on each token alone."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nanovllm.model.config import ModelConfig


class SwiGLU(nn.Module):
    """`SwiGLU(config)`: Llama's MLP, x [T, E] to down(silu(gate(x)) * up(x)) [T, E].

    silu(z) = z / (1 + exp(-z)); I is `config.intermediate_size`. Modules, all `nn.Linear`:
    `gate_proj` and `up_proj` from E to I, `down_proj` from I to E; they have a bias where
    `config.mlp_bias` says so. Source: Shazeer 2020.

    >>> import torch
    >>> mlp = SwiGLU(ModelConfig("llama", 8, 4, 1, 2, 2, 2, 6, 16))
    >>> sorted(mlp.state_dict()), mlp(torch.zeros(3, 4)).abs().sum().item()
    (['down_proj.weight', 'gate_proj.weight', 'up_proj.weight'], 0.0)
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab02 task 4: SwiGLU")


class GeluMLP(nn.Module):
    """`GeluMLP(config)`: GPT-2's MLP, x [T, E] to down(gelu(up(x))) [T, E].

    gelu in its tanh form: z/2 * (1 + tanh(sqrt(2/pi) * (z + 0.044715 z^3))). Modules, as in
    `SwiGLU`: `up_proj` from E to I and `down_proj` from I to E.

    >>> import torch
    >>> mlp = GeluMLP(ModelConfig("gpt2", 8, 4, 1, 2, 2, 2, 6, 16, mlp_bias=True))
    >>> mlp(torch.zeros(3, 4)).shape, list(mlp.up_proj.bias.shape)
    (torch.Size([3, 4]), [6])
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab02 task 4: GeluMLP")
