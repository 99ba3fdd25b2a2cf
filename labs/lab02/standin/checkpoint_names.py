"""Names in a checkpoint of the Llama kind, the bundled model's."""

from collections.abc import Iterator

from torch import Tensor


def module_tensors(family: str, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """One tensor of a file fills one of the model."""
    return iter([(name.removeprefix("model."), tensor)])
