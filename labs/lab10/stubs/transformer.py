"""Lab 02's transformer on several ranks: each has some heads, neurons and rows of embeddings."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.attend import Attend
from nanovllm.model.config import ModelConfig
from nanovllm.model.norms import RMSNorm
from nanovllm.model.positions import Rotation
from nanovllm.model.registry import FAMILIES
from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.linears import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from nanovllm.parallel.shards import kv_heads, query_heads, rank_config, rows_of_heads, share
from nanovllm.parallel.vocabulary import VocabParallelEmbedding, parallel_logits


class ParallelAttention(nn.Module):
    """`ParallelAttention(config, comm, layer)`: lab 02's `SelfAttention`, on the rank's heads.

    Called as `(x [T, E], rotation, attend)`, it gives all ranks the whole result [T, E], by one
    all-reduce. `attend` gets the rank's heads: q [T, H', D], k and v [T, G', D] of
    `rank_config(config, comm.size, comm.rank)`. `config` is the whole model's.

    Modules: `qkv_proj`, a `MergedColumnParallelLinear` of q_proj, k_proj and v_proj; `o_proj`, a
    `RowParallelLinear`; `q_norm` and `k_norm` as in lab 02.

    >>> from nanovllm.parallel.threads import run_ranks
    >>> config = ModelConfig("llama", 9, 8, 1, 4, 2, 2, 8, 16)
    >>> def shapes(comm):
    ...     attention = ParallelAttention(config, comm, layer=0)
    ...     return [tuple(weight.shape) for weight in attention.parameters()]
    >>> run_ranks(4, shapes)[3]  # qkv_proj: a head of q, of k and of v
    [(6, 8), (8, 2)]
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab10 task 4: ParallelAttention")


class ParallelMLP(nn.Module):
    """`ParallelMLP(config, comm)`: the family's MLP, x [T, E] to [T, E], on the rank's neurons.

    The rank has the neurons `share(I, comm.size, comm.rank)`, perhaps none; all ranks get the whole
    result, by one all-reduce. GPT-2's is lab 02's `GeluMLP`, the others' its `SwiGLU`.

    Modules: `up_proj`, a `ColumnParallelLinear`, for GPT-2; for the others `gate_up_proj`, a
    `MergedColumnParallelLinear` of gate_proj and up_proj; `down_proj`, a `RowParallelLinear`.

    >>> from nanovllm.parallel.threads import run_ranks
    >>> config = ModelConfig("llama", 9, 8, 1, 4, 2, 2, 7, 16)
    >>> def shapes(comm):
    ...     return [tuple(weight.shape) for weight in ParallelMLP(config, comm).parameters()]
    >>> run_ranks(2, shapes)
    [[(8, 8), (8, 4)], [(6, 8), (8, 3)]]
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab10 task 4: ParallelMLP")


class ParallelBlock(nn.Module):
    """`ParallelBlock(config, comm, layer)`: lab 02's `DecoderBlock` of these two, with its norms.

    Modules: `input_layernorm`, `self_attn`, `post_attention_layernorm`, `mlp`.
    """

    def __init__(self, config: ModelConfig, comm: Communicator, layer: int) -> None:
        super().__init__()
        norm, sizes = FAMILIES[config.family].norm, (config.hidden_size, config.norm_eps)
        self.self_attn = ParallelAttention(config, comm, layer)
        self.input_layernorm, self.post_attention_layernorm = norm(*sizes), norm(*sizes)
        self.mlp = ParallelMLP(config, comm)

    def forward(
        self, x: Float[Tensor, "T E"], rotation: Rotation, attend: Attend
    ) -> Float[Tensor, "T E"]:
        attended = self.self_attn(self.input_layernorm(x), rotation, attend)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class ParallelTransformer(nn.Module):
    """`ParallelTransformer(config, comm)`: lab 02's `Transformer`, of which each rank has a part.

    All ranks call `model(token_ids [T], positions [T], attend)` with the same tokens, each with its
    own `attend`, and all get the same hidden states [T, E], bit for bit; so with
    `logits(hidden [N, E])`, which gives [N, V]. A call costs 2 L + 1 all-reduces, the logits one
    `gather_last`, however many tokens there are.

    Attribute: `config`, which is `rank_config(config, comm.size, comm.rank)`: of the rank's heads.
    Modules: `embed_tokens`, a `VocabParallelEmbedding`; `positions` and `norm` as in lab 02;
    `layers`, an `nn.ModuleList` of L `ParallelBlock`s; and, unless `config.tie_embeddings`,
    `lm_head`, a `ColumnParallelLinear` with the rank's share of V rows.

    Raises:
        ParallelError: the query heads cannot be shared equally.

    >>> import torch
    >>> from nanovllm.model.attend import RecomputeAttend
    >>> from nanovllm.parallel.threads import run_ranks
    >>> config = ModelConfig("llama", 9, 8, 1, 4, 2, 2, 7, 16)
    >>> def step(comm):
    ...     model = ParallelTransformer(config, comm)
    ...     ids, attend = torch.tensor([3, 8]), RecomputeAttend(model.config)
    ...     hidden = model(ids, torch.arange(2), attend)
    ...     return hidden.shape, model.logits(hidden[-1:]).shape, comm.counts["all_reduce"].calls
    >>> run_ranks(4, step)[0]
    (torch.Size([2, 8]), torch.Size([1, 9]), 3)
    """

    def __init__(self, config: ModelConfig, comm: Communicator) -> None:
        super().__init__()
        family, hidden = FAMILIES[config.family], config.hidden_size
        self.config = rank_config(config, comm.size, comm.rank)
        self.comm = comm
        self.embed_tokens = VocabParallelEmbedding(comm, config.vocab_size, hidden)
        self.positions = family.positions(config)
        self.layers = nn.ModuleList(
            ParallelBlock(config, comm, layer) for layer in range(config.num_layers)
        )
        self.norm = family.norm(hidden, config.norm_eps)
        if not config.tie_embeddings:
            mine = share(config.vocab_size, comm.size, comm.rank)
            self.lm_head = ColumnParallelLinear(hidden, mine)

    def forward(
        self, token_ids: Int[Tensor, "T"], positions: Int[Tensor, "T"], attend: Attend
    ) -> Float[Tensor, "T E"]:
        x = self.embed_tokens(token_ids)
        x, rotation = self.positions.embed(x, positions), self.positions.rotation(positions)
        for block in self.layers:
            x = block(x, rotation, attend)
        return self.norm(x)

    def logits(self, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "N V"]:
        """The scores of all tokens, on every rank."""
        raise NotImplementedError("lab10 task 4: ParallelTransformer.logits")
