"""Lab 02's decoder by lab 06's kernels: fused projections, fused norms, K and V by slot."""

from typing import cast

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.gpu.availability import GpuPathError, unknown_family
from nanovllm.gpu.grouped import moe_by_kernels
from nanovllm.kernels.attention import triton_paged_attention
from nanovllm.kernels.rms_norm import fused_add_rms_norm_
from nanovllm.kernels.rope import rope_
from nanovllm.kernels.silu import silu_and_mul
from nanovllm.kernels.store_kv import store_kv
from nanovllm.model.block import DecoderBlock
from nanovllm.model.experts import ExpertsConfig
from nanovllm.model.mlp import SwiGLU
from nanovllm.model.positions import RopeRotation
from nanovllm.model.transformer import Transformer
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.cache import PagedCache
from nanovllm.performance.fusion import merge_linears
from nanovllm.performance.moe import MoE


class FusedLayer:
    """The weights of one block, q/k/v side by side; gate/up too, where there are no experts."""

    def __init__(self, block: DecoderBlock, experts: ExpertsConfig | None) -> None:
        attention, self.experts = block.self_attn, experts
        self.qkv, self.qkv_bias = merge_linears(
            (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if experts is None:
            mlp = cast(SwiGLU, block.mlp)
            self.gate_up, self.gate_up_bias = merge_linears((mlp.gate_proj, mlp.up_proj))
        self.block = block

    def mlp(self, x: Float[Tensor, "T E"]) -> Float[Tensor, "T E"]:
        """The block's MLP, or its experts."""
        if self.experts is not None:
            return moe_by_kernels(cast(MoE, self.block.mlp), x, self.experts)
        return self.block.mlp.down_proj(silu_and_mul(F.linear(x, self.gate_up, self.gate_up_bias)))


class FusedDecoder:
    """`Transformer.forward` over a paged cache; families with RMSNorm and SwiGLU.

    Raises GpuPathError for other families (GPT-2).
    """

    def __init__(self, model: Transformer) -> None:
        reason = unknown_family(model.config)
        if reason is not None:
            raise GpuPathError(f"The GPU path cannot be used: {reason}.")
        self.model = model
        self.config = model.config
        blocks = [cast(DecoderBlock, block) for block in model.layers]
        experts = model.config.experts
        sparse = experts.layers if experts else ()
        self.layers = [
            FusedLayer(block, experts if number in sparse else None)
            for number, block in enumerate(blocks)
        ]
        following = [block.input_layernorm.weight for block in blocks][1:]
        self.next_norms = [*following, model.norm.weight]

    def forward(
        self,
        token_ids: Int[Tensor, "T"],
        positions: Int[Tensor, "T"],
        cache: PagedCache,
        batch: PagedBatch,
    ) -> Float[Tensor, "T E"]:
        """The hidden states after the last norm; K and V are stored by batch.slot_mapping."""
        config, eps = self.config, self.config.norm_eps
        residual = self.model.embed_tokens(token_ids)
        rotation = cast(RopeRotation, self.model.positions.rotation(positions))
        x = F.rms_norm(
            residual, residual.shape[-1:], self.layers[0].block.input_layernorm.weight, eps
        )
        for number, layer in enumerate(self.layers):
            attention = layer.block.self_attn
            qkv = F.linear(x, layer.qkv, layer.qkv_bias)
            heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
            q, k, v = qkv.view(len(x), -1, config.head_dim).split(heads, dim=1)
            q, k = attention.q_norm(q), attention.k_norm(k)
            rope_(q, k, rotation.cos, rotation.sin)
            caches = cache.k[number], cache.v[number]
            store_kv(k, v, *caches, batch.slot_mapping)
            out = triton_paged_attention(q, *caches, batch, window=config.window(number))
            x = attention.o_proj(out.reshape(len(x), -1))
            fused_add_rms_norm_(x, residual, layer.block.post_attention_layernorm.weight, eps)
            x = layer.mlp(x)
            fused_add_rms_norm_(x, residual, self.next_norms[number], eps)
        return x
