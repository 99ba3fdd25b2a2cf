"""Where the GPU path can be used, and why it cannot elsewhere."""

from importlib.util import find_spec

import torch

from nanovllm.model.config import ModelConfig
from nanovllm.model.mlp import SwiGLU
from nanovllm.model.norms import RMSNorm
from nanovllm.model.registry import FAMILIES

OLDEST = (8, 0)  # Ampere, the oldest that Triton supports


class GpuPathError(RuntimeError):
    """The GPU path cannot be used; the message says why."""


def unknown_family(config: ModelConfig) -> str | None:
    """Why there are no fused kernels for a model's family; None if there are.

    >>> unknown_family(ModelConfig("gpt2", 9, 4, 1, 2, 2, 2, 8, 16))
    'its kernels know RMSNorm and SwiGLU, and gpt2 has others'
    """
    family = FAMILIES[config.family]
    if (family.norm, family.mlp) != (RMSNorm, SwiGLU):
        return f"its kernels know RMSNorm and SwiGLU, and {config.family} has others"
    return None


def available(config: ModelConfig, device: torch.device | str) -> str | None:
    """Why the GPU path cannot be used for this model on this device; None if it can.

    >>> available(ModelConfig("llama", 9, 4, 1, 2, 2, 2, 8, 16), "cpu")
    'it is for CUDA GPUs, and the model is on cpu'
    """
    if torch.device(device).type != "cuda":
        return f"it is for CUDA GPUs, and the model is on {device}"
    reason = unknown_family(config)
    if reason is not None:
        return reason
    if find_spec("triton") is None:
        return "Triton is not installed"
    from nanovllm.kernels import INTERPRETED  # not before: it imports Triton

    if INTERPRETED:
        return "lab 06's kernels run in Triton's interpreter here"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        found, needed = (".".join(map(str, version)) for version in (capability, OLDEST))
        return f"it needs a GPU of compute capability {needed}, and this one has {found}"
    return None
