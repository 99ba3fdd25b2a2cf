"""Every method of the lab on a whole model, by its name (given)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from nanovllm.model.transformer import Transformer
from nanovllm.quantization.at_load import round_linears
from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.scheme import Scheme

OnProgress = Callable[[int, int], None]  # how much is done, of how much
METHODS = ("rtn", "gptq", "awq")


def quantize(
    model: Transformer,
    method: str,
    scheme: Scheme,
    rows: Int[Tensor, "R S"] | None = None,
    on_progress: OnProgress | None = None,
    act_order: bool = False,
) -> Transformer:
    """Quantize every linear of the layers in place; gives the model back.

    rows: tokens to calibrate with; rtn does without. act_order: of gptq alone.

    Raises:
        QuantizationError: the method is unknown, or has no rows.
    """
    if method not in METHODS:
        raise QuantizationError(f"method {method!r} is not known; use {', '.join(METHODS)}.")
    if method == "rtn":
        return round_linears(model, scheme)
    if rows is None or rows.numel() == 0:
        raise QuantizationError(f"{method} needs rows of text to calibrate with, and got none.")
    # What is not asked for is not imported: a student may have written only some of it.
    from nanovllm.quantization.by_layer import quantize_by_layer

    if method == "gptq":
        from nanovllm.quantization.gptq import gptq_block

        quantizer = partial(gptq_block, scheme=scheme, act_order=act_order)
    else:
        from nanovllm.quantization.awq import awq_block

        quantizer = partial(awq_block, scheme=scheme, head_dim=model.config.head_dim)
    with torch.no_grad():
        quantize_by_layer(model, rows, quantizer, on_progress)
    return model
