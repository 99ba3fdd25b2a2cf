"""The pipeline: hidden states go from stage to stage, in micro-batches so that all are busy."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nanovllm.model.attend import Attend
from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.stages import Stage


@dataclass(frozen=True)
class MicroBatch:
    """A part of a step's tokens; every stage has an attend of its own."""

    token_ids: Int[Tensor, "T"]
    positions: Int[Tensor, "T"]
    attend: Attend


def schedule(num_stages: int, num_micro_batches: int) -> list[tuple[int, int, int]]:
    """Who computes what when, if each micro-batch takes each stage one tick and sending takes none.

    Returns:
        (tick, stage, micro-batch), sorted: every stage takes the micro-batches in order, each as
        soon as the stage before has done with it.

    >>> schedule(2, 2)
    [(0, 0, 0), (1, 0, 1), (1, 1, 0), (2, 1, 1)]
    """
    raise NotImplementedError("lab10 task 6: schedule")


def bubble(num_stages: int, num_micro_batches: int) -> float:
    """The share of the ticks, over all stages, in which a stage waits; there is a micro-batch.

    >>> bubble(1, 8), bubble(2, 1), bubble(4, 9)
    (0.0, 0.5, 0.25)
    """
    raise NotImplementedError("lab10 task 6: bubble")


def run_stage(
    stage: Stage, comm: Communicator, micro_batches: Sequence[MicroBatch]
) -> list[Float[Tensor, "T E"]]:
    """Compute one stage of all micro-batches, in order; every stage calls it at the same time.

    comm: the stages, rank i is stage i. A stage sends the hidden states of a micro-batch on before
    it begins the next one: one message for each micro-batch from each stage but the last.

    Returns:
        In the last stage the hidden states of each micro-batch, in all others [].
    """
    raise NotImplementedError("lab10 task 6: run_stage")
