"""llm-compressor and transformers, run by the Python of the environment that has them.

`llmcompressor_peer.py make MODEL RECIPE ROWS TO` writes a folder of compressed-tensors, and
`llmcompressor_peer.py logits FOLDER ROWS TO` a file of what transformers makes of tokens with it.
ROWS is a file of token ids [R, S], `rows`. The last line is JSON: the versions of the packages.
"""

import json
import sys
from importlib import metadata
from typing import Any, cast

import torch
import transformers
from safetensors.torch import load_file, save_file

LINEARS: dict[str, Any] = {"targets": ["Linear"], "ignore": ["lm_head"]}


def recipe(name: str) -> list[Any]:
    """Modifiers of a method and one of compressed-tensors' schemes: `gptq W4A16`."""
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    method, scheme = name.split()
    linears = LINEARS | {"scheme": scheme}
    match method:
        case "rtn":
            return [QuantizationModifier(**linears)]
        case "gptq":
            return [GPTQModifier(**linears)]
        case "awq":
            if not torch.accelerator.is_available():  # it pins memory for one all the same
                setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # noqa: B010 - untyped
            return [AWQModifier(), QuantizationModifier(**linears)]
        case "smoothquant":
            return [SmoothQuantModifier(), GPTQModifier(**linears)]
    raise ValueError(f"no recipe is called {name!r}")


def make(model: str, name: str, rows: torch.Tensor, to: str) -> None:
    from llmcompressor import oneshot

    samples = [{"input_ids": row[None], "attention_mask": torch.ones_like(row)[None]}
               for row in rows]  # fmt: skip
    loader = torch.utils.data.DataLoader(cast(Any, samples), batch_size=None)  # a list serves
    oneshot(
        model=transformers.AutoModelForCausalLM.from_pretrained(model, dtype="auto"),
        tokenizer=model, recipe=recipe(name), dataset=loader, num_calibration_samples=len(rows),
        max_seq_length=rows.shape[1], output_dir=to,
    )  # fmt: skip


def logits(folder: str, rows: torch.Tensor, to: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        save_file({"logits": model(rows).logits}, to)


if __name__ == "__main__":
    task, *words, rows_file, to = sys.argv[1:]
    {"make": make, "logits": logits}[task](*words, load_file(rows_file)["rows"], to)
    packages = ("llmcompressor", "compressed-tensors", "transformers", "torch")
    print(json.dumps({one.name: one.version for one in metadata.distributions()
                      if one.name in packages}))  # fmt: skip
