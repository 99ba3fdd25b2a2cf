"""Lab 06: the engine's hot loops as Triton kernels, compiled on a GPU or interpreted on a CPU."""

from nanovllm.kernels.runtime import DEVICE, INTERPRETED

__all__ = ["DEVICE", "INTERPRETED"]
