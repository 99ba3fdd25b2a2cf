"""Muon for the hidden matrices, in float32: PyTorch's own runs in bf16, slow on most CPUs."""

from collections import defaultdict

import torch
from torch import Tensor, nn


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Push all singular values of a stack of matrices towards one (Newton-Schulz iteration)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is orthogonalised; equal shapes are done in one stack."""

    def __init__(
        self,
        params: list[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # it has none
        """Update every parameter once."""
        for group in self.param_groups:
            stacks: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                stacks[parameter.shape].append(parameter)
            for shape, parameters in stacks.items():
                self._step_stack(parameters, shape, group)

    def _step_stack(self, parameters: list[nn.Parameter], shape: torch.Size, group: dict) -> None:
        directions = []
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            average = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            directions.append(parameter.grad.lerp(average, group["momentum"]))
        updates = orthogonalise(torch.stack(directions))
        scale = max(1.0, shape[0] / shape[1]) ** 0.5
        for parameter, update in zip(parameters, updates):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update, alpha=-group["lr"] * scale)


def optimizers(network: nn.Module, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices and AdamW for the embedding and the norms."""
    named = dict(network.named_parameters())
    hidden = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named.items() if p.ndim != 2 or "embed" in name]
    return [
        Muon(hidden, lr=muon_lr),
        torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
