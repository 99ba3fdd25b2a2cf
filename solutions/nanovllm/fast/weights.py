"""The model's weights in the order in which the native step reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from nanovllm.fast import structs
from nanovllm.fast.availability import BLOCK_MULTIPLE
from nanovllm.fast.codes import Codes, Join, codes_of, float_weight
from nanovllm.fast.file_pages import give_back
from nanovllm.fast.memory import Arena
from nanovllm.model.block import DecoderBlock
from nanovllm.model.config import ModelConfig
from nanovllm.model.mlp import GeluMLP
from nanovllm.model.norms import LayerNorm, RMSNorm
from nanovllm.model.positions import LearnedPositions
from nanovllm.model.transformer import Transformer


def pair_of(dtype: torch.dtype) -> int:
    """How many values along the inner dimension lie side by side: 2 in bfloat16, else 1."""
    return 2 if dtype == torch.bfloat16 else 1


def padded(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


def pack(weight: Tensor, panel: int) -> Tensor:
    """A matrix [N, K] as [N / panel, K / pair, panel, pair], N filled up with zeros; a view.

    >>> pack(torch.arange(6.0).view(3, 2), panel=2).flatten().tolist()
    [0.0, 2.0, 1.0, 3.0, 4.0, 0.0, 5.0, 0.0]
    """
    rows, inner = weight.shape
    pair = pair_of(weight.dtype)
    filled = nn.functional.pad(weight, (0, 0, 0, padded(rows, panel) - rows))
    return filled.view(-1, panel, inner // pair, pair).permute(0, 2, 1, 3)


def interleave(both: Sequence[Tensor], lanes: int) -> Tensor:
    """Rows of two matrices (or entries of two vectors) in turn, `lanes` at a time.

    >>> interleave((torch.tensor([1, 2, 3]), torch.tensor([5, 6, 7])), lanes=2).tolist()
    [1, 2, 5, 6, 3, 0, 7, 0]
    """
    missing = -len(both[0]) % lanes
    filled = [torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:]))) for rows in both]
    return torch.stack([rows.unflatten(0, (-1, lanes)) for rows in filled], dim=1).flatten(0, 2)


class NativeWeights:
    """A Transformer's weights, packed, and the struct that points to them.

    lanes: floats in a vector of this machine (the native library says). The tensors that were
    packed are copies, and of the model's own, if they are mapped from a file, no page stays in
    memory; embeddings are shared with the model. `widened`: how many quantized linears
    are multiplied as floats, since the native step does not read their codes.
    """

    def __init__(self, model: Transformer, lanes: int, max_model_len: int) -> None:
        self.config = config = model.config
        self.dtype = model.embed_tokens.weight.dtype
        self.lanes = lanes
        self.tensors: list[Tensor] = []  # whatever the struct points to
        self._arena = Arena()
        self._kept: list[Any] = []  # arrays of structs that layers point to
        self.quantized = self.widened = 0  # linears
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
            vocab=config.vocab_size,
            gated=not isinstance(model.layers[0].mlp, GeluMLP),
            layer_norm=isinstance(model.norm, LayerNorm),
            quantized=self.quantized > 0,
            **_sizes_of_experts(config),
            eps=config.norm_eps,
            embedding=self._keep(model.embed_tokens.weight),
            positions=self._floats(learned),
            cosine=self._floats(cosine),
            sine=self._floats(sine),
            norm=self._norm(model.norm),
            head=self._stored(head, None),
        )
        give_back(head)

    def _layer(self, model: Transformer, index: int) -> structs.Layer:
        block = cast(DecoderBlock, model.layers[index])
        attention, mlp = block.self_attn, block.mlp
        parts = self._experts(mlp) if hasattr(mlp, "gate_up") else self._mlp(mlp)
        packed = structs.Layer(
            input=self._norm(block.input_layernorm),
            post_attention=self._norm(block.post_attention_layernorm),
            q_norm=self._floats(getattr(attention.q_norm, "weight", None)),
            k_norm=self._floats(getattr(attention.k_norm, "weight", None)),
            qkv=self._linear(attention.q_proj, attention.k_proj, attention.v_proj),
            output=self._linear(attention.o_proj),
            window=self.config.window(index) or 0,
            **parts,
        )
        for weight in block.state_dict().values():
            give_back(weight)
        return packed

    def _mlp(self, mlp: Any) -> dict[str, structs.Matrix]:
        """The two matrices of a dense MLP: gate and up are one."""
        if not hasattr(mlp, "gate_proj"):
            return {"up": self._linear(mlp.up_proj), "down": self._linear(mlp.down_proj)}
        both = self._linear(mlp.gate_proj, mlp.up_proj, join=self._interleave)
        return {"up": both, "down": self._linear(mlp.down_proj)}

    def _experts(self, moe: Any) -> dict[str, Any]:
        """Lab 14's `MoE`: the router, and the two matrices of each expert, the shared one last."""
        router, found = [moe.gate.weight], []
        for gate_up, down in zip(moe.gate_up, moe.down, strict=True):
            found.append(self._stored(self._interleave(gate_up.chunk(2)), None))
            found.append(self._stored(down, None))
        if self.config.experts is not None and self.config.experts.shared_size:
            router.append(moe.shared_expert_gate.weight)
            found += self._mlp(moe.shared_expert).values()
        experts = (structs.Matrix * len(found))(*found)
        self._kept.append(experts)
        return {"router": self._stored(torch.cat(router), None), "experts": experts}

    def _interleave(self, both: Sequence[Tensor]) -> Tensor:
        return interleave(both, self.lanes)

    def _linear(self, *linears: Any, join: Join = torch.cat) -> structs.Matrix:
        """Linears as one matrix, its rows one above the other, or as `join` has them; all of them
        have a bias, or none."""
        biases = [linear.bias for linear in linears]
        bias = None if biases[0] is None else join(biases)
        codes = codes_of(linears, join)
        if codes is not None:
            self.quantized += len(linears)
            return self._codes(codes, bias)
        self.widened += sum(hasattr(linear, "dequantize") for linear in linears)
        return self._stored(join([float_weight(linear, self.dtype) for linear in linears]), bias)

    def _stored(self, weight: Tensor, bias: Tensor | None) -> structs.Matrix:
        columns, inner = weight.shape
        data = self._keep(self._arena.copy(pack(weight, self.panel)))
        return structs.Matrix(data=data, bias=self._column(bias), columns=columns, inner=inner)

    def _codes(self, codes: Codes, bias: Tensor | None) -> structs.Matrix:
        columns, inner = codes.codes.shape
        return structs.Matrix(
            data=self._keep(self._arena.copy(codes.packed(self.panel))),
            bias=self._column(bias),
            scales=self._column(codes.scales[:, 0]) if codes.by_row else None,
            columns=columns,
            inner=inner,
            bits=codes.bits,
            block=codes.block,
            middle=codes.middle,
            by_row=codes.by_row,
        )

    def _column(self, numbers: Tensor | None) -> int | None:
        """One number a row of a matrix, filled up to whole panels."""
        if numbers is None:
            return None
        return self._floats(nn.functional.pad(numbers, (0, -len(numbers) % self.panel)))

    @property
    def panel(self) -> int:
        """Rows of a matrix that are packed together."""
        return 2 * self.lanes

    def _norm(self, norm: RMSNorm | LayerNorm) -> structs.Norm:
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


def _sizes_of_experts(config: ModelConfig) -> dict[str, int]:
    """And of the widest MLP, with experts or without."""
    experts = config.experts
    if experts is None:
        return {"widest": config.intermediate_size}
    sizes = (config.intermediate_size, experts.intermediate_size, experts.shared_size)
    return {
        "num_experts": experts.num_experts,
        "per_token": experts.per_token,
        "normalize": experts.normalize,
        "shared": experts.shared_size > 0,
        "widest": max(sizes),
    }


def _angles(model: Transformer, length: int) -> tuple[Tensor | None, Tensor | None]:
    """cos and sin [length, D/2] of every position, where the model turns its queries and keys."""
    rotation = model.positions.rotation(torch.arange(length))
    return getattr(rotation, "cos", None), getattr(rotation, "sin", None)
