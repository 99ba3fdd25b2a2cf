"""The same decoder in fewer operations: merged products, norms in one operation, one RoPE."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.attend import Attend
from nanovllm.model.positions import RopeRotation
from nanovllm.model.transformer import Transformer
from nanovllm.performance.buckets import bucket_for
from nanovllm.performance.errors import PerformanceError


def merge_linears(parts: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """The weights of some projections of one input, one below another, and their biases.

    The projections' own weights become views of the result: no weight is in memory twice, and the
    model computes as before; weights that an earlier merge has put there stay where they are.
    Biases may be copied. The bias is None where no part has one; a part without stands as 0.

    >>> parts = [nn.Linear(2, rows, bias=False) for rows in (3, 1)]
    >>> weight, bias = merge_linears(parts)
    >>> list(weight.shape), bias, parts[1].weight.data_ptr() == weight[3].data_ptr()
    ([4, 2], None, True)
    """
    ### BEGIN SOLUTION
    rows = [len(part.weight) for part in parts]
    weight = _lying_together([part.weight.data for part in parts])
    if weight is None:
        weight = torch.cat([part.weight.data for part in parts])
        for part, view in zip(parts, weight.split(rows), strict=True):
            part.weight.data = view
    if all(part.bias is None for part in parts):
        return weight, None
    biases = [
        weight.new_zeros(count) if part.bias is None else part.bias.data
        for part, count in zip(parts, rows, strict=True)
    ]
    return weight, torch.cat(biases)


def _lying_together(parts: Sequence[Tensor]) -> Tensor | None:
    """The matrix whose rows these are, one part below another, if they lie in memory like this."""
    first, at = parts[0], parts[0].data_ptr()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or part.data_ptr() != at or not part.is_contiguous():
            return None
        at += part.nbytes
    return first.as_strided((sum(map(len, parts)), first.shape[1]), first.stride())
    ### END SOLUTION


class FusedTransformer:
    """`FusedTransformer(model)`: lab 02's model, called and answering as it, in fewer operations.

    `fused(token_ids [T], positions [T], attend)` gives what `model(...)` gives, and
    `fused.logits(hidden)` what `model.logits` gives; `attend` sees the same q, k and v, in the same
    layers. A step of a dense Llama-like model has at most 22 operations a layer and 14 besides,
    those of `attend` and views not counted (`CountOps`, under `torch.inference_mode()`, as an
    engine runs: elsewhere torch takes a norm apart). q, k and v are one product, gate and up
    another. No weight is in memory twice, also where a model is fused again. An MLP that is not
    gated, or a mixture of experts, is called as it is.
    Attributes: `model`, `config`. Raises PerformanceError for a model that has LayerNorm or learned
    positions (GPT-2), naming its family.
    """

    ### BEGIN SOLUTION
    def __init__(self, model: Transformer) -> None:
        self.model, self.config = model, model.config
        if model.config.family == "gpt2":
            raise PerformanceError("gpt2 has LayerNorm and learned positions; run it as it is.")
        self.layers: list[Any] = list(model.layers)
        self.qkv, self.gate_up = [], []
        for block in self.layers:
            attention, mlp = block.self_attn, block.mlp
            parts = (attention.q_proj, attention.k_proj, attention.v_proj)
            self.qkv.append(merge_linears(parts))
            gated = all(isinstance(getattr(mlp, n, None), nn.Linear)
                        for n in ("gate_proj", "up_proj", "down_proj"))  # fmt: skip
            self.gate_up.append(merge_linears((mlp.gate_proj, mlp.up_proj)) if gated else None)

    def _norm(self, x: Tensor, norm: Any) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)

    def __call__(
        self, token_ids: Int[Tensor, "T"], positions: Int[Tensor, "T"], attend: Attend
    ) -> Float[Tensor, "T E"]:
        return self.forward(token_ids, cast(Any, self.model.positions.rotation(positions)), attend)

    def forward(
        self, token_ids: Int[Tensor, "T"], turn: RopeRotation, attend: Attend
    ) -> Float[Tensor, "T E"]:
        config, tokens = self.config, len(token_ids)
        heads = (config.num_heads, config.num_kv_heads)
        x = self.model.embed_tokens(token_ids)
        cos, sin = (
            torch.cat((half, half), -1)[:, None].to(x.dtype) for half in (turn.cos, turn.sin)
        )
        for number, block in enumerate(self.layers):
            attention = block.self_attn
            qkv = F.linear(self._norm(x, block.input_layernorm), *self.qkv[number])
            qkv = qkv.view(tokens, -1, config.head_dim)
            qk, v = qkv.split((sum(heads), heads[1]), dim=1)
            if config.qk_norm:
                q, k = qk.split(heads, dim=1)
                qk = torch.cat(
                    (self._norm(q, attention.q_norm), self._norm(k, attention.k_norm)), 1
                )
            a, b = qk.chunk(2, dim=-1)
            qk = qk * cos + torch.cat((-b, a), dim=-1) * sin
            q, k = qk.split(heads, dim=1)
            x = x + attention.o_proj(attend(number, q, k, v).reshape(tokens, -1))
            normed, gate_up = self._norm(x, block.post_attention_layernorm), self.gate_up[number]
            if gate_up is None:
                x = x + block.mlp(normed)
                continue
            gate, up = F.linear(normed, *gate_up).chunk(2, dim=-1)
            x = x + block.mlp.down_proj(F.silu(gate) * up)
        return self._norm(x, self.model.norm)

    def logits(self, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "N V"]:
        return self.model.logits(hidden)

    ### END SOLUTION


class CompiledRows:
    """`CompiledRows(function, buckets, compile)`: one compiled `function` for each bucket of rows.

    function: tensors with N rows each to one tensor with N rows, each row depending on that row of
    the inputs alone. `compiled(*inputs)` fills the inputs up with zeros to the smallest bucket that
    holds N, computes, and gives the first N rows. So after each bucket was seen once nothing is
    compiled again, whatever the batch sizes. A batch above the largest bucket runs `function`
    as it is. `compile(function)`, `torch.compile` if not given, is called once for each bucket that
    is needed, the first time that it is; what it gives is called with that bucket's rows only.

    >>> sizes = []
    >>> noting = lambda function: lambda x: sizes.append(len(x)) or function(x)
    >>> rows = CompiledRows(lambda x: x + 1, (2, 4), noting)
    >>> rows(torch.zeros(3)).tolist(), rows(torch.zeros(5)).tolist(), sizes
    ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0], [4])
    """

    ### BEGIN SOLUTION
    def __init__(
        self,
        function: Callable[..., Tensor],
        buckets: tuple[int, ...],
        compile: Callable[[Callable[..., Tensor]], Callable[..., Tensor]] = torch.compile,
    ) -> None:
        self.function, self.buckets, self._compile = function, buckets, compile
        self._compiled: dict[int, Callable[..., Tensor]] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        rows = len(inputs[0])
        bucket = bucket_for(rows, self.buckets)
        if bucket is None:
            return self.function(*inputs)
        if bucket not in self._compiled:
            self._compiled[bucket] = self._compile(self.function)
        filled = [torch.cat((x, x.new_zeros(bucket - rows, *x.shape[1:]))) for x in inputs]
        return self._compiled[bucket](*filled)[:rows]

    ### END SOLUTION
