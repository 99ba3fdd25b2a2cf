"""Lab 09's GPU side: its kernel in the engine, and compiled for GPUs that are not here."""

from __future__ import annotations

import pytest
import torch

from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.quantization import w4a16
from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.grids import round_to_nearest
from nanovllm.quantization.grouped import GroupedLinear
from nanovllm.quantization.held_out import hidden_states
from nanovllm.quantization.int8_on_gpu import padded_int_mm
from nanovllm.quantization.linear import linears, replace_linear
from nanovllm.quantization.scheme import Scheme

CONFIG = ModelConfig("qwen2", 40, 24, 2, 4, 2, 6, 40, 64, qkv_bias=True)


@pytest.mark.parametrize(("bits", "launches"), [(4, 14), (8, 0)])
def test_a_model_of_4_bits_runs_on_the_kernel_where_asked(
    bits: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen, launch = dummy_model(CONFIG), [], w4a16.launch
    for name, linear in list(linears(model)):
        weight = round_to_nearest(linear.weight.detach(), Scheme(bits, 16))
        replace_linear(model, name, GroupedLinear(weight, linear.bias))
    rows = torch.arange(10).view(2, 5)
    with torch.no_grad():
        plain = hidden_states(model, rows)
        monkeypatch.setenv("NANOVLLM_LINEAR", "triton")
        monkeypatch.setattr(w4a16, "launch", lambda *a, **k: seen.append(1) or launch(*a, **k))
        torch.testing.assert_close(hidden_states(model, rows), plain, rtol=1e-4, atol=1e-4)
        assert len(seen) == launches
        monkeypatch.setenv("NANOVLLM_LINEAR", "cutlass")
        if bits == 4:
            with pytest.raises(QuantizationError, match="must be torch or triton"):
                hidden_states(model, rows)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (17, 8, 16), (40, 33, 5)])
def test_products_of_int8_are_filled_up_for_a_gpu(rows: int, inner: int, columns: int) -> None:
    a, b = (torch.randint(-128, 128, (n, inner), dtype=torch.int8) for n in (rows, columns))
    assert torch.equal(padded_int_mm(a, b), a.int() @ b.int().t())
