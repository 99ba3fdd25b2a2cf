"""Every method of the lab on a whole model, by its name (given)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from nanovllm.model.transformer import Transformer
from nanovllm.quantization.at_load import BY_CHANNEL, round_linears
from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.linear import QuantizedLinear, linears, replace_linear
from nanovllm.quantization.scheme import Scheme

OnProgress = Callable[[int, int], None]  # how much is done, of how much
METHODS = ("rtn", "gptq", "awq", "squeezellm", "smoothquant")


def quantize(
    model: Transformer,
    method: str,
    scheme: Scheme,
    rows: Int[Tensor, "R S"] | None = None,
    on_progress: OnProgress | None = None,
    act_order: bool = False,
) -> Transformer:
    """Quantize every linear of the layers in place; gives the model back.

    rows: tokens to calibrate with; rtn does without. act_order: of gptq alone. squeezellm has
    tables, of which the scheme says only the bits; smoothquant is int8 by channel, activations too.

    Raises:
        QuantizationError: the method is unknown, cannot have this scheme, or has no rows; the
            model is quantized already.
    """
    check_method(method, scheme)
    if any(isinstance(linear, QuantizedLinear) for _, linear in linears(model)):
        raise QuantizationError("the model is quantized already; begin with the unquantized one.")
    if method == "rtn":
        return round_linears(model, scheme)
    if rows is None or rows.numel() == 0:
        raise QuantizationError(f"{method} needs rows of text to calibrate with, and got none.")
    # What is not asked for is not imported: a student may have written only some of it.
    if method == "squeezellm":
        return _squeeze(model, scheme.bits, rows, on_progress)
    from nanovllm.quantization.by_layer import quantize_by_layer

    if method == "gptq":
        from nanovllm.quantization.gptq import gptq_block

        quantizer = partial(gptq_block, scheme=scheme, act_order=act_order)
    elif method == "awq":
        from nanovllm.quantization.awq import awq_block

        quantizer = partial(awq_block, scheme=scheme, head_dim=model.config.head_dim)
    else:
        from nanovllm.quantization.smoothquant import smoothquant_block

        quantizer = partial(smoothquant_block, head_dim=model.config.head_dim)
    with torch.no_grad():
        quantize_by_layer(model, rows, quantizer, on_progress)
    return model


def check_method(method: str, scheme: Scheme) -> None:
    """Raise QuantizationError for an unknown method, or one that cannot have this scheme."""
    if method not in METHODS:
        raise QuantizationError(f"method {method!r} is not known; use {', '.join(METHODS)}.")
    if method == "squeezellm" and scheme.bits == 8:
        raise QuantizationError("squeezellm has tables of 2, 3 or 4 bits, not of 8.")
    if method == "smoothquant" and scheme != BY_CHANNEL:
        raise QuantizationError(
            "smoothquant is 8 bits by channel and symmetric: --bits 8 --group -1 --symmetric."
        )


def _squeeze(
    model: Transformer, bits: int, rows: Int[Tensor, "R S"], on_progress: OnProgress | None
) -> Transformer:
    from nanovllm.quantization.squeezellm import fisher_diagonal, squeeze

    fisher = fisher_diagonal(model, rows, on_progress)
    for name, linear in list(linears(model)):
        replace_linear(model, name, squeeze(linear, fisher[name], bits))
    return model
