"""The shape of a mixture of experts, which lab 14 puts in the place of a block's MLP (given)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanovllm.model.config import ModelConfig


@dataclass(frozen=True)
class ExpertsConfig:
    """How many experts a sparse layer has, and how many of them each token visits."""

    num_experts: int
    per_token: int  # k
    intermediate_size: int  # of one expert
    normalize: bool  # the weights of a token's k experts add up to 1
    layers: tuple[int, ...]  # the sparse layers; the others have the family's own MLP
    shared_size: int = 0  # of the expert that every token visits; 0: there is none

    def __post_init__(self) -> None:
        for name in ("num_experts", "per_token", "intermediate_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, but is {value!r}.")
        if self.per_token > self.num_experts:
            raise ValueError(
                f"each token is to visit {self.per_token} experts, but there are "
                f"{self.num_experts}."
            )


def mixtral_experts(raw: dict[str, Any]) -> ExpertsConfig:
    """Mixtral: experts in every layer, of the size of a dense MLP, their weights normalised."""
    return ExpertsConfig(
        num_experts=raw.get("num_local_experts", 8),
        per_token=raw.get("num_experts_per_tok", 2),
        intermediate_size=raw["intermediate_size"],
        normalize=True,
        layers=tuple(range(raw["num_hidden_layers"])),
    )


def qwen_experts(raw: dict[str, Any], shared: bool) -> ExpertsConfig | None:
    """Qwen2-MoE (with a shared expert) and Qwen3-MoE; None where every layer is dense."""
    step, dense = raw.get("decoder_sparse_step", 1), raw.get("mlp_only_layers") or ()
    if not isinstance(step, int) or isinstance(step, bool) or step < 1:
        raise ValueError(f"decoder_sparse_step must be a positive whole number, but is {step!r}.")
    layers = range(raw["num_hidden_layers"])
    sparse = tuple(i for i in layers if i not in dense and (i + 1) % step == 0)
    num_experts = raw.get("num_experts", raw.get("num_local_experts"))
    if num_experts is None:
        raise KeyError("num_experts")
    if not sparse or num_experts == 0:
        return None
    return ExpertsConfig(
        num_experts=num_experts,
        per_token=raw["num_experts_per_tok"],
        intermediate_size=raw["moe_intermediate_size"],
        normalize=bool(raw.get("norm_topk_prob", False)),
        layers=sparse,
        shared_size=raw["shared_expert_intermediate_size"] if shared else 0,
    )


def extra_weights(config: ModelConfig) -> int:
    """Weights that the experts add to those of the dense model of the same config; 0 without any.

    >>> from nanovllm.model.config import ModelConfig
    >>> experts = ExpertsConfig(5, 2, 3, True, layers=(0,))
    >>> extra_weights(ModelConfig("mixtral", 9, 4, 2, 2, 1, 2, 6, 16, experts=experts))
    128
    """
    experts, hidden = config.experts, config.hidden_size
    if experts is None:
        return 0
    inside = 3 * (experts.num_experts * experts.intermediate_size + experts.shared_size)
    gates = experts.num_experts + (experts.shared_size > 0)
    return len(experts.layers) * hidden * (inside + gates - 3 * config.intermediate_size)
