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
    ### BEGIN SOLUTION
    weights = {name: linear.weight for name, linear in linears(model)}
    asked = {name: weight.requires_grad for name, weight in weights.items()}
    fisher = {
        name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in weights.items()
    }
    for weight in weights.values():
        weight.requires_grad_(True)
    for number, row in enumerate(rows):
        logits = model.logits(hidden_states(model, row[None, :-1])[0])
        loss = F.cross_entropy(logits.float(), row[1:])
        gradients = torch.autograd.grad(loss, list(weights.values()))
        for name, gradient in zip(weights, gradients, strict=True):
            fisher[name] += gradient.float().square() / len(rows)
        if on_progress is not None:
            on_progress(number + 1, len(rows))
    for name, weight in weights.items():
        weight.requires_grad_(asked[name])
    return fisher
    ### END SOLUTION


def kept_apart(weight: Float[Tensor, "N K"], fisher: Float[Tensor, "N K"]) -> Bool[Tensor, "N K"]:
    """Which weights go to the sparse part: of all N * K the share LARGEST by their absolute value,
    and the share MOST_SENSITIVE by the Fisher diagonal, each rounded to the nearest whole number (a
    half may go up or down); some may be in both."""
    ### BEGIN SOLUTION
    apart = torch.zeros_like(weight, dtype=torch.bool)
    for size, share in ((weight.abs(), LARGEST), (fisher, MOST_SENSITIVE)):
        apart.view(-1)[size.flatten().topk(round(share * weight.numel())).indices] = True
    return apart
    ### END SOLUTION


def squeeze(
    linear: nn.Linear, fisher: Float[Tensor, "N K"], bits: int, sparse: bool = True
) -> TableLinear:
    """A `TableLinear` in place of a linear: in each row the best table of 2**bits values for its
    weights, each as important as its Fisher diagonal.

    With `sparse`, weights that are kept apart do not count for the tables, and the sparse part has
    what their codes' values, as float16, lack of them. The bias stays.
    """
    ### BEGIN SOLUTION
    weight = linear.weight.detach().float()
    apart = kept_apart(weight, fisher) if sparse else torch.zeros_like(weight, dtype=torch.bool)
    table, codes = weighted_kmeans(weight, fisher.masked_fill(apart, 0.0), 2**bits)
    dense = table.half().float().gather(1, codes.long())
    return TableLinear(codes, table, (weight - dense).masked_fill(~apart, 0.0), linear.bias)
    ### END SOLUTION
