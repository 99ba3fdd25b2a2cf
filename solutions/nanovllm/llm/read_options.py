"""What `LLM` may be asked for, read from what a person wrote."""

import json
import sys
from pathlib import Path

import torch

import nanovllm

UNTRIED = (
    "mps runs the plain step, which the course's tests have run on CPUs only; if an answer is "
    "wrong or torch lacks an operation, use --device cpu"
)
BUNDLED = Path(nanovllm.__file__).resolve().parent.parent / "models" / "target"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class OptionError(ValueError):
    """An option of LLM that cannot be honoured."""


def read_dtype(
    dtype: str | torch.dtype | None, folder: Path, device: torch.device | str = "cpu"
) -> torch.dtype:
    """Return the type to compute in; `auto` is the one the checkpoint was saved in.

    None is bfloat16 on a CUDA GPU that has it, else float32.

    >>> read_dtype("bfloat16", Path(".")), read_dtype(None, Path("."))
    (torch.bfloat16, torch.float32)
    """
    if dtype is None:
        on_gpu = torch.device(device).type == "cuda"
        has_it = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_it else torch.float32
    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = config.get("dtype") or config.get("torch_dtype") or "float32"
    if name not in _DTYPES:
        raise OptionError(f"dtype {name!r} is not known; use {', '.join(_DTYPES)} or auto.")
    return _DTYPES[name]


def say(message: str) -> None:
    """Tell the user, on standard error."""
    print(f"nanovllm: {message}", file=sys.stderr, flush=True)


def devices() -> list[str]:
    """The names of the devices that torch finds here."""
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ["cpu", *(name for name, there in gpus.items() if there)]


def read_device(device: str | torch.device | None) -> torch.device:
    """Return where to compute; by default the CPU: a GPU is asked for by name."""
    if device is None:
        return torch.device("cpu")
    try:
        found = torch.device(device)
        _refuse_number(found)
        torch.empty(1, device=found)  # a name may be right and the device missing
    except (RuntimeError, AssertionError, NotImplementedError):
        raise OptionError(
            f"device {str(device)!r} is not here; leave it out, or use {' or '.join(devices())}."
        ) from None
    if found.type == "mps":
        say(UNTRIED)
    if found.type == "meta":
        raise OptionError("device 'meta' computes nothing; use cpu.")
    return found


def _refuse_number(device: torch.device) -> None:
    """Refuse all GPUs but the first: kernels and graphs run there, whatever tensors they get."""
    if device.type == "cuda" and device.index:
        raise OptionError(
            f"device '{device}' is a GPU by its number; use cuda, with CUDA_VISIBLE_DEVICES="
            f"{device.index} in the environment, and it is the only one."
        )


def read_max_model_len(asked: int | None, of_model: int) -> int:
    """Return the longest context in tokens, prompt and answer together."""
    if asked is None:
        return of_model
    if not 2 <= asked <= of_model:
        raise OptionError(
            f"max_model_len is {asked}, but must be from 2 (a prompt and an answer) to {of_model}, "
            "the longest context this model was made for."
        )
    return asked
