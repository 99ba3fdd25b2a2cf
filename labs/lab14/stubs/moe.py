"""Mixture of experts: a router sends each token to a few of many small MLPs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.config import ModelConfig
from nanovllm.model.mlp import SwiGLU
from nanovllm.performance.errors import PerformanceError


def route(
    logits: Float[Tensor, "T N"], k: int, normalize: bool
) -> tuple[Float[Tensor, "T k"], Int[Tensor, "T k"]]:
    """The k experts of each token, the most probable first, and the weight of each.

    Which of two experts with equal logits comes first is left open. The weights are softmax
    probabilities over all N experts, in float32 whatever the logits' dtype; with `normalize` those
    of the k chosen ones are divided by their sum. The experts are int64. Raises PerformanceError
    where k is not in 1 .. N.

    >>> weights, experts = route(torch.tensor([[0.0, 2.0, 1.0]]), k=2, normalize=False)
    >>> experts.tolist(), weights
    ([[1, 2]], tensor([[0.6652, 0.2447]]))
    """
    raise NotImplementedError("lab14 task 5: route")


@dataclass(frozen=True)
class Dispatch:
    """The T*k visits of a step's tokens, those to expert 0 first, then those to expert 1, ...

    visits [T*k]: each visit's place in `experts.flatten()`, so its token is visits // k. Visits to
    one expert are in the order of their tokens. counts [N]: how many visits each expert has.
    """

    visits: Int[Tensor, "T*k"]
    counts: Int[Tensor, "N"]


def sort_by_expert(experts: Int[Tensor, "T k"], num_experts: int) -> Dispatch:
    """Sort visits by expert. No loop over tokens.

    >>> found = sort_by_expert(torch.tensor([[2, 0], [0, 3]]), num_experts=4)
    >>> found.visits.tolist(), found.counts.tolist()
    ([1, 2, 0, 3], [2, 0, 1, 1])
    """
    raise NotImplementedError("lab14 task 5: sort_by_expert")


def grouped_mlp(
    x: Float[Tensor, "M E"],
    counts: Int[Tensor, "N"],
    gate_up: Float[Tensor, "N IxTwo E"],
    down: Float[Tensor, "N E I"],
) -> Float[Tensor, "M E"]:
    """Each row through the MLP of its expert: down(silu(gate(x)) * up(x)).

    The first counts[0] rows are expert 0's, the next counts[1] expert 1's, and so on. An expert's
    `gate_up` has the I rows of its gate above the I rows of its up. The result has x's dtype. An
    expert without rows is not computed, and no expert is computed twice.

    >>> weights = torch.ones(2, 2, 1), torch.tensor([[[1.0]], [[10.0]]])
    >>> grouped_mlp(torch.tensor([[1.0], [1.0]]), torch.tensor([1, 1]), *weights)
    tensor([[0.7311],
            [7.3106]])
    """
    raise NotImplementedError("lab14 task 5: grouped_mlp")


class MoE(nn.Module):
    """`MoE(config)`: the sparse layer of a model whose `config.experts` is set, [T, E] to [T, E].

    Every token visits its k experts; its result is the sum of theirs, each times its weight. Where
    `experts.shared_size` is not 0, a further expert is added, which every token visits, times
    sigmoid(shared_expert_gate(x)). The result has x's dtype. A token's result does not depend on
    the other tokens.

    Modules and parameters: `gate`, an `nn.Linear` from E to N without bias, whose result, in x's
    dtype, are the router's logits; `gate_up` [N, 2I, E] and `down` [N, E, I], as `grouped_mlp`
    wants them. With a shared expert also `shared_expert`, a `SwiGLU` of `shared_size`, and
    `shared_expert_gate`, an `nn.Linear` from E to 1 without bias.

    >>> from nanovllm.model.experts import ExpertsConfig
    >>> experts = ExpertsConfig(5, 2, 3, normalize=True, layers=(0,))
    >>> layer = MoE(ModelConfig("mixtral", 9, 4, 1, 2, 2, 2, 6, 16, experts=experts))
    >>> [(name, list(weight.shape)) for name, weight in sorted(layer.state_dict().items())]
    [('down', [5, 4, 3]), ('gate.weight', [5, 4]), ('gate_up', [5, 6, 4])]
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab14 task 5: MoE")


def stack_experts(
    tensors: Mapping[str, Tensor], num_experts: int
) -> tuple[Float[Tensor, "N IxTwo E"], Float[Tensor, "N E I"]]:
    """`gate_up` and `down` of one layer from the tensors of its experts as checkpoints name them.

    A name begins with the expert's number. Qwen: `0.gate_proj.weight` and `0.up_proj.weight`
    [I, E], `0.down_proj.weight` [E, I]. Mixtral says w1 for the gate, w3 for up, w2 for down.
    Raises PerformanceError, which names it, where a tensor is missing or is none of these.

    >>> one, two = torch.ones(1, 1), torch.full((1, 1), 2.0)
    >>> stored = {"0.w1.weight": one, "0.w2.weight": two, "0.w3.weight": one + 2}
    >>> gate_up, down = stack_experts(stored, num_experts=1)
    >>> gate_up.flatten().tolist(), down.flatten().tolist()
    ([1.0, 3.0], [2.0])
    """
    raise NotImplementedError("lab14 task 5: stack_experts")
