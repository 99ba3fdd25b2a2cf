"""The model's weights in the order in which the native step reads them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from nanovllm.fast import structs
from nanovllm.fast.availability import BLOCK_MULTIPLE
from nanovllm.model.norms import LayerNorm
from nanovllm.model.positions import LearnedPositions
from nanovllm.model.transformer import Transformer


def pair_of(dtype: torch.dtype) -> int:
    """How many values along the inner dimension lie side by side: 2 in bfloat16, else 1."""
    return 2 if dtype == torch.bfloat16 else 1


def padded(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


def pack(weight: Tensor, panel: int) -> Tensor:
    """A matrix [N, K] as [N / panel, K / pair, panel, pair], N filled up with zeros.

    >>> pack(torch.arange(6.0).view(3, 2), panel=2).flatten().tolist()
    [0.0, 2.0, 1.0, 3.0, 4.0, 0.0, 5.0, 0.0]
    """
    rows, inner = weight.shape
    pair = pair_of(weight.dtype)
    filled = nn.functional.pad(weight, (0, 0, 0, padded(rows, panel) - rows))
    return filled.view(-1, panel, inner // pair, pair).permute(0, 2, 1, 3).contiguous()


def interleave(gate: Tensor, up: Tensor, lanes: int) -> Tensor:
    """Rows of two matrices (or entries of two vectors) in turn, `lanes` at a time.

    >>> interleave(torch.tensor([1, 2, 3]), torch.tensor([5, 6, 7]), lanes=2).tolist()
    [1, 2, 5, 6, 3, 0, 7, 0]
    """
    missing = padded(len(gate), lanes) - len(gate)
    both = []
    for rows in (gate, up):
        nothing = rows.new_zeros(missing, *rows.shape[1:])
        both.append(torch.cat((rows, nothing)).unflatten(0, (-1, lanes)))
    return torch.stack(both, dim=1).flatten(0, 2)


class NativeWeights:
    """A Transformer's weights, packed, and the struct that points to them.

    lanes: floats in a vector of this machine (the native library says). The tensors that were
    packed are copies; embeddings are shared with the model.
    """

    def __init__(self, model: Transformer, lanes: int, max_model_len: int) -> None:
        self.config = config = model.config
        self.dtype = model.embed_tokens.weight.dtype
        self.lanes = lanes
        self.tensors: list[Tensor] = []  # whatever the struct points to
        self._layers = (structs.Layer * config.num_layers)(
            *(self._layer(model, layer) for layer in range(config.num_layers))
        )
        tied = config.tie_embeddings
        head = model.embed_tokens.weight if tied else model.lm_head.weight
        learned = model.positions.weight if isinstance(model.positions, LearnedPositions) else None
        cosine, sine = _angles(model, max_model_len)
        self.struct = structs.Model(
            layers=self._layers,
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            padded_dim=padded(config.head_dim, 2 * BLOCK_MULTIPLE),
            intermediate=config.intermediate_size,
            vocab=config.vocab_size,
            gated=hasattr(model.layers[0].mlp, "gate_proj"),
            layer_norm=isinstance(model.norm, LayerNorm),
            eps=config.norm_eps,
            embedding=self._keep(model.embed_tokens.weight),
            positions=self._floats(learned),
            cosine=self._floats(cosine),
            sine=self._floats(sine),
            norm=self._norm(model.norm),
            head=self._matrix([head], [None]),
        )

    def _layer(self, model: Transformer, index: int) -> structs.Layer:
        block = model.layers[index]
        attention, mlp = block.self_attn, block.mlp
        qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
        if hasattr(mlp, "gate_proj"):
            pair = (mlp.gate_proj, mlp.up_proj)
            weight = interleave(*(linear.weight for linear in pair), lanes=self.lanes)
            biased = pair[0].bias is not None
            bias = interleave(*(x.bias for x in pair), lanes=self.lanes) if biased else None
            up = self._matrix([weight], [bias])
        else:
            up = self._linear(mlp.up_proj)
        return structs.Layer(
            input=self._norm(block.input_layernorm),
            post_attention=self._norm(block.post_attention_layernorm),
            q_norm=self._floats(getattr(attention.q_norm, "weight", None)),
            k_norm=self._floats(getattr(attention.k_norm, "weight", None)),
            qkv=self._linear(*qkv),
            output=self._linear(attention.o_proj),
            up=up,
            down=self._linear(mlp.down_proj),
            window=self.config.window(index) or 0,
        )

    def _linear(self, *linears: nn.Linear) -> structs.Matrix:
        return self._matrix([x.weight for x in linears], [x.bias for x in linears])

    def _matrix(self, weights: list[Tensor], biases: list[Tensor | None]) -> structs.Matrix:
        """Matrices one above the other, packed; all of them have a bias, or none."""
        weight, panel = torch.cat(weights), 2 * self.lanes
        bias = None
        if biases[0] is not None:
            bias = torch.cat(biases)
            bias = nn.functional.pad(bias, (0, padded(len(bias), panel) - len(bias)))
        columns, inner = weight.shape
        packed = self._keep(pack(weight, panel))
        return structs.Matrix(data=packed, bias=self._floats(bias), columns=columns, inner=inner)

    def _norm(self, norm: nn.Module) -> structs.Norm:
        bias = getattr(norm, "bias", None)
        return structs.Norm(weight=self._floats(norm.weight), bias=self._floats(bias))

    def _floats(self, tensor: Tensor | None) -> int | None:
        return None if tensor is None else self._keep(tensor.detach().float().contiguous())

    def _keep(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return tensor.data_ptr()

    @property
    def address(self) -> ctypes.c_void_p:
        """Where the struct is."""
        return ctypes.c_void_p(ctypes.addressof(self.struct))


def _angles(model: Transformer, length: int) -> tuple[Tensor | None, Tensor | None]:
    """cos and sin [length, D/2] of every position, where the model turns its queries and keys."""
    rotation = model.positions.rotation(torch.arange(length))
    return getattr(rotation, "cos", None), getattr(rotation, "sin", None)
