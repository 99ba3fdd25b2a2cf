"""Calibration of a model with sliding windows sees what its layers see."""

from dataclasses import replace

import torch

from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.quantization.by_layer import quantize_by_layer
from nanovllm.quantization.held_out import hidden_states

CONFIG = ModelConfig("mistral", 97, 64, 2, 4, 2, 20, 96, 160, windows=(7, None))


def test_rows_are_those_of_the_model() -> None:
    rows = torch.arange(120).view(3, 40) % 97
    for windows in ((7, None), (40, 39), ()):
        model = dummy_model(replace(CONFIG, windows=windows))
        attend, places, inputs = RecomputeAttend(model.config), torch.arange(40), []
        with torch.inference_mode():
            wanted = torch.stack([model(row, places, attend) for row in rows])
            torch.testing.assert_close(hidden_states(model, rows), wanted, rtol=1e-4, atol=1e-4)
        seen: list[torch.Tensor] = []
        down = model.layers[1].mlp.down_proj
        hook = down.register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0]))
        with torch.no_grad():
            for row in rows:
                model(row, places, attend)
        hook.remove()
        quantize_by_layer(
            model, rows, lambda _, found, inputs=inputs: inputs.append(found["mlp.down_proj"])
        )
        torch.testing.assert_close(inputs[1], torch.cat(seen), rtol=1e-4, atol=1e-4)
