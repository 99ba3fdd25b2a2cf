"""SqueezeLLM: tables of free values where the loss is sensitive, and a few weights left whole."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nanovllm.model.transformer import Transformer
from nanovllm.quantization.by_layer import OnProgress
from nanovllm.quantization.held_out import hidden_states
from nanovllm.quantization.kmeans import weighted_kmeans
from nanovllm.quantization.linear import linears
from nanovllm.quantization.table_linear import TableLinear

LARGEST, MOST_SENSITIVE = 0.0045, 0.0005  # shares of a weight that are kept apart


def fisher_diagonal(
    model: Transformer, rows: Int[Tensor, "R S"], on_progress: OnProgress | None = None
) -> dict[str, Float[Tensor, "N K"]]:
    """How sensitive the loss is to each weight of each linear of the layers, by its name.

    The loss of a row is the mean of -log p(next token) over its tokens but the last. The Fisher
    diagonal is the mean, over the rows, of the squared gradient of a row's loss: of each row by
    itself, since gradients of many rows cancel out. It is float32. Weights, their `.grad` and
    `requires_grad` are afterwards what they were. `on_progress(rows done, rows)` is called after
    each row.
    """
    raise NotImplementedError("lab09 task 5: fisher_diagonal")


def kept_apart(weight: Float[Tensor, "N K"], fisher: Float[Tensor, "N K"]) -> Bool[Tensor, "N K"]:
    """Which weights go to the sparse part: of all N * K the share LARGEST by their absolute value,
    and the share MOST_SENSITIVE by the Fisher diagonal, each rounded to the nearest whole number (a
    half may go up or down); some may be in both."""
    raise NotImplementedError("lab09 task 5: kept_apart")


def squeeze(
    linear: nn.Linear, fisher: Float[Tensor, "N K"], bits: int, sparse: bool = True
) -> TableLinear:
    """A `TableLinear` in place of a linear: in each row the best table of 2**bits values for its
    weights, each as important as its Fisher diagonal.

    With `sparse`, weights that are kept apart do not count for the tables, and the sparse part has
    what their codes' values, as float16, lack of them. The bias stays.
    """
    raise NotImplementedError("lab09 task 5: squeeze")
