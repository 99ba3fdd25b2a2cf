"""Cards and models as a planner sees them, and what a step then costs (given)."""

from dataclasses import dataclass

from nanovllm.batching.simulator import StepCost
from nanovllm.model.accounting import kv_bytes_per_token, matmul_parameters, weight_count
from nanovllm.model.config import ModelConfig


@dataclass(frozen=True)
class Card:
    """Bytes and operations a second, bytes of memory; `reached`: share of operations got."""

    name: str
    bytes_s: float
    flops_s: float
    memory: float
    reached: float = 0.35


# NVIDIA's datasheets: H100 SXM, A100 SXM 80 GB, L4; dense products in bfloat16.
CARDS = {
    card.name: card
    for card in (
        Card("h100", 3.35e12, 989e12, 80e9),
        Card("a100", 2.04e12, 312e12, 80e9),
        Card("l4", 300e9, 121e12, 24e9),
    )
}


@dataclass(frozen=True)
class ModelSize:
    """A model as a planner sees it."""

    name: str
    weight_bytes: int
    kv_bytes: int  # of a token
    flops: int  # of a token, without attention

    @classmethod
    def of(cls, name: str, config: ModelConfig, dtype_bytes: int = 2) -> "ModelSize":
        """By lab 02's accounting."""
        return cls(
            name,
            weight_count(config) * dtype_bytes,
            kv_bytes_per_token(config, dtype_bytes),
            2 * matmul_parameters(config),
        )


# 8.03 billion weights, 32 layers with 8 key/value heads of 128, in bfloat16.
LLAMA_8B = ModelSize("llama-3.1-8b", 16_060_522_496, 131_072, 13_958_643_712)


def step_cost(model: ModelSize, card: Card) -> StepCost:
    """A step reads all weights, computes its tokens, and reads the K and V of its requests.

    >>> cost = step_cost(LLAMA_8B, CARDS["h100"])
    >>> [round(1e6 * part, 3) for part in (cost.base, cost.per_token, cost.per_place)]
    [4794.186, 40.325, 0.039]
    """
    return StepCost(
        base=model.weight_bytes / card.bytes_s,
        per_token=model.flops / (card.flops_s * card.reached),
        per_place=model.kv_bytes / card.bytes_s,
    )
