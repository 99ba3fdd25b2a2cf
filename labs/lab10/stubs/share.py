"""A rank's share: its stage and slice of the model, its part of K and V (given)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.model.attend import Attend
from nanovllm.paging.batch import PagedBatch
from nanovllm.paging.store import attend_to_blocks, carry_out
from nanovllm.paging.swapping import Swapping
from nanovllm.paging.transfers import Transfer
from nanovllm.parallel.attention import cache_and_attention
from nanovllm.parallel.checkpoint import Checkpoint
from nanovllm.parallel.communicator import Communicator, Subgroup
from nanovllm.parallel.executor_interface import RankFacts
from nanovllm.parallel.load_stage import load_stage
from nanovllm.parallel.pipeline import MicroBatch, run_stage
from nanovllm.parallel.share_spec import ShareSpec
from nanovllm.parallel.stages import layer_ranges
from nanovllm.parallel.step_input import StepInput


class RankShare:
    """Rank r of S stages of n slices is slice r % n of stage r // n. The executor calls this.

    `hidden` and `logits` are for beam search, whose caches are others than the engine's, each
    under a name.
    """

    def __init__(self, spec: ShareSpec, comm: Communicator) -> None:
        slices, stages = spec.tensor_parallel_size, spec.pipeline_parallel_size
        stage, place = divmod(comm.rank, slices)
        self.group = Subgroup(comm, list(range(stage * slices, (stage + 1) * slices)))
        self.pipe = Subgroup(comm, list(range(place, comm.size, slices)))
        self.spec, self.device = spec, spec.device_of(comm.rank)
        checkpoint = Checkpoint(spec.folder)
        self.model = load_stage(checkpoint, self.group, stage, stages, spec.dtype, self.device)
        self.is_last = stage == stages - 1
        self.caches = {}
        block_bytes = spec.block_bytes(self.model.config)
        self.facts = RankFacts(
            comm.rank,
            answers=self.is_last and place == 0,
            checkpoint=checkpoint.fingerprint,
            num_blocks=spec.num_blocks(block_bytes, self.device),
            weight_bytes=sum(w.nbytes for w in self.model.state_dict().values()),
            block_bytes=block_bytes,
        )

    def reserve(self, num_blocks: int, name: str = "engine") -> None:
        """Make a cache of so many blocks; the engine's has room for swapped ones in host memory."""
        host = self.spec.num_host_blocks if name == "engine" else 0
        sizes = self.model.config, num_blocks, self.spec.block_size, self.spec.dtype
        self.caches[name] = cache_and_attention(*sizes, self.device, host)

    def resize(self, transfers: Sequence[Transfer], num_blocks: int) -> None:
        """The engine's cache, after these copies: its first blocks stay, or some are added."""
        cache, _ = self.caches["engine"]
        carry_out(list(transfers), cache)
        cache.resize(num_blocks)

    def copy_seconds(self) -> float:
        """What it takes to copy a block to host memory and back; before any holds a token."""
        cache, _ = self.caches["engine"]
        swapping = Swapping(1, self.spec.num_host_blocks)
        swapping.measure(cache)
        return 2 / (swapping.bytes_per_second or math.inf)

    def drop(self, name: str) -> None:
        """Give the memory of a cache back."""
        self.caches.pop(name, None)

    def compute(self, step: StepInput) -> Float[Tensor, "N V"] | None:
        """Logits of the wanted rows, in the last stage."""
        hidden = self.hidden(step, "engine")
        return None if hidden is None else self.model.logits(hidden[step.rows.to(self.device)])

    def logits(self, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "N V"] | None:
        """The model's, in the last stage."""
        return self.model.logits(hidden.to(self.device)) if self.is_last else None

    def hidden(self, step: StepInput, name: str) -> Float[Tensor, "T E"] | None:
        """Copies first, then all layers; hidden states in the last stage."""
        cache, _ = self.caches[name]
        carry_out(list(step.transfers), cache)
        done = run_stage(self.model, self.pipe, self._micro_batches(step, name))
        return torch.cat(done) if self.is_last else None

    def _micro_batches(self, step: StepInput, name: str) -> list[MicroBatch]:
        """The step's sequences in as many groups as there are stages, or in fewer."""
        ids, places = (x.to(self.device) for x in (step.token_ids, step.positions))
        starts = step.batch.query_start_loc.tolist()
        groups = layer_ranges(len(starts) - 1, min(self.pipe.size, len(starts) - 1))
        return [
            MicroBatch(
                ids[starts[group.start] : starts[group.stop]],
                places[starts[group.start] : starts[group.stop]],
                self._attend(part_of(step.batch, group, self.device), name),
            )
            for group in groups
        ]

    def _attend(self, batch: PagedBatch, name: str) -> Attend:
        cache, attention = self.caches[name]
        return attend_to_blocks(cache, self.model.config, batch, attention)


def part_of(batch: PagedBatch, group: range, device: torch.device) -> PagedBatch:
    """The batch of some of its sequences, neighbours, on a device."""
    starts = batch.query_start_loc[group.start : group.stop + 1]
    lens = batch.context_lens[group.start : group.stop]
    return PagedBatch(
        slot_mapping=batch.slot_mapping[starts[0] : starts[-1]].to(device),
        block_tables=batch.block_tables[group.start : group.stop].to(device),
        context_lens=lens.to(device),
        query_start_loc=(starts - starts[0]).to(device),
        max_query_len=int(starts.diff().max()),
        max_context_len=int(lens.max()),
    )
