"""The way to the device for what was made on the host."""

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device, from pinned memory: a plain copy to a GPU waits for its work."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
