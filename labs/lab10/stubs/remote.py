"""A model whose weights, K and V are on the ranks, as engine and beam search see it (given)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.model.config import ModelConfig
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.beam import PagedBeamCache
from nanovllm.paging.cache import Pairs
from nanovllm.paging.transfers import Direction, Transfer
from nanovllm.parallel.executor_interface import ExecutorInterface
from nanovllm.parallel.step_input import StepInput

BEAMS = "beams"  # the cache of beam searches, one at a time


class RemoteCache:
    """Where a PagedCache would be: it notes the copies, for the ranks to make them.

    model: whose ranks have the blocks, so many at first. nbytes: of all ranks together.
    """

    device = torch.device("cpu")
    copies_at_once = False

    def __init__(
        self, model: "RemoteModel | None" = None, num_blocks: int = 0, nbytes: int = 0
    ) -> None:
        self._model, self._num_blocks, self.nbytes = model, num_blocks, nbytes
        self.due: list[Transfer] = []

    def resize(self, num_blocks: int) -> None:
        """The copies due are made first; then the first blocks stay. Raises ExecutorDied."""
        model = cast(RemoteModel, self._model)
        cast(ExecutorInterface, model.executor).call("resize", self.take(), num_blocks)
        self.nbytes = self.nbytes // self._num_blocks * num_blocks
        self._num_blocks = model.num_blocks = num_blocks

    def copy_blocks(self, pairs: Pairs) -> None:
        self._note(Direction.COPY, pairs)

    def swap_out(self, pairs: Pairs) -> None:
        self._note(Direction.OUT, pairs)

    def swap_in(self, pairs: Pairs) -> None:
        self._note(Direction.IN, pairs)

    def _note(self, direction: Direction, pairs: Pairs) -> None:
        self.due += [Transfer(direction, old, new) for old, new in pairs]

    def take(self) -> tuple[Transfer, ...]:
        """The copies due, which are the ranks' affair from now on."""
        taken, self.due = tuple(self.due), []
        return taken


@dataclass(frozen=True)
class RemoteAttend:
    """In place of an attend: what the ranks make theirs of."""

    batch: PagedBatch
    transfers: tuple[Transfer, ...]


class RemoteModel:
    """Lab 02's Transformer, at a distance; a step of a beam search takes two calls.

    folder, device: from where the ranks read it, and where they compute. executor: None until the
    ranks are started. num_blocks: of each rank, once they were resized.
    """

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, folder: str = "", device: str = "cpu"
    ) -> None:
        self.config, self.folder, self.device = config, folder, device
        self.executor: ExecutorInterface | None = None
        self.num_blocks: int | None = None
        self._like = torch.empty(0, dtype=dtype)

    def parameters(self) -> Iterator[Tensor]:
        """One weight, by which the driver knows dtype and device: its own, the CPU."""
        yield self._like

    def __call__(
        self, token_ids: Int[Tensor, "T"], positions: Int[Tensor, "T"], attend: RemoteAttend
    ) -> Float[Tensor, "T E"]:
        step = StepInput(token_ids, positions, attend.batch, attend.transfers, token_ids[:0])
        return cast(ExecutorInterface, self.executor).call("hidden", step, BEAMS)

    def logits(self, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "N V"]:
        """The ranks' logits of these rows."""
        return cast(ExecutorInterface, self.executor).call("logits", hidden)


class RemoteBeamCache(PagedBeamCache):
    """Lab 05's, with K and V on the ranks."""

    def __init__(self, executor: ExecutorInterface, *sizes: Any) -> None:
        super().__init__(*sizes, cache=cast(Any, RemoteCache()))
        executor.call("reserve", self.pool.num_blocks, BEAMS)

    def attend(self, batch: PagedBatch) -> Any:
        """What the ranks are told about a step."""
        return RemoteAttend(batch, cast(Any, self.cache).take())
