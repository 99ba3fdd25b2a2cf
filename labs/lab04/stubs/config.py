"""The engine's settings: frozen, checked, with vLLM's names."""

from dataclasses import dataclass

from nanovllm.batching.budget import AdaptiveBudget, Budget, FixedBudget
from nanovllm.batching.budget_counts import CountedBudget
from nanovllm.batching.errors import ConfigError
from nanovllm.batching.policies import Policy, make_policy


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How the engine batches.

    max_num_seqs: requests that run at once. max_num_batched_tokens: tokens that a step computes
    at most. max_chunk: of these, tokens of one request; None for no limit of its own.
    max_model_len: tokens of a prompt and its answer; None for the model's limit. policy: a name
    (see policies.py) or a Policy. adaptive_budget: let the controller shrink and grow the steps.

    >>> EngineConfig(max_num_seqs=0)
    Traceback (most recent call last):
    nanovllm.batching.errors.ConfigError: max_num_seqs must be at least 1, got 0.
    """

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_chunk: int | None = None
    max_model_len: int | None = None
    policy: str | Policy = "fcfs"
    adaptive_budget: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_chunk", "max_model_len"):
            value = getattr(self, name)
            optional = name in ("max_chunk", "max_model_len")
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name} must be a whole number, got {value!r}.")
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, but must be at least "
                f"max_num_seqs={self.max_num_seqs}: every running request may need a token."
            )
        if isinstance(self.policy, str):
            make_policy(self.policy)
        elif not isinstance(self.policy, Policy):
            raise ConfigError(f"policy must be a name or a Policy, got {self.policy!r}.")

    def make_policy(self) -> Policy:
        """The policy itself."""
        return make_policy(self.policy) if isinstance(self.policy, str) else self.policy

    def make_budget(self) -> Budget:
        """The budget: fixed, or moving between one token a request and the maximum."""
        most = self.max_num_batched_tokens
        if self.adaptive_budget:
            return CountedBudget(AdaptiveBudget(limit=most, lowest=self.max_num_seqs, highest=most))
        return FixedBudget(most)
