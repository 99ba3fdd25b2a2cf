"""The inference engine of the course: your code where you have started a lab, else the reference.

Python looks for subpackages along `__path__`: your own folder first, the reference second, so
that the engine works from the first minute. The environment variable NANOVLLM_CODE selects
otherwise: `reference` (nothing of yours), `mine` (no lab from the reference), or `lab02` (that
lab yours, the others from the reference). NANOVLLM_MINE names another folder as yours.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

__version__ = "0.1.0"
__all__ = ["LLM", "RequestOutput", "SamplingParams"]

_HOMES = {
    "LLM": "nanovllm.llm",
    "RequestOutput": "nanovllm.outputs",
    "SamplingParams": "nanovllm.generation.params",
}
_PACKAGE_OF_LAB = {
    "lab01": "tokenization",
    "lab02": "model",
    "lab03": "generation",
    "lab04": "batching",
}
_MINE = Path(os.environ.get("NANOVLLM_MINE") or Path(__file__).parent).resolve()
_REFERENCE = Path(__file__).resolve().parent.parent / "solutions" / "nanovllm"
_CODE = os.environ.get("NANOVLLM_CODE", "")


class _PerLab:
    """Choose for single labs, which `__path__` cannot: each of its entries is a whole folder."""

    @staticmethod
    def find_spec(
        name: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        parent, _, package = name.rpartition(".")
        if parent != __name__:
            return None
        lab = next((lab for lab, its in _PACKAGE_OF_LAB.items() if its == package), None)
        if lab is None or _CODE not in ("mine", lab):
            return None
        spec = PathFinder.find_spec(name, [str(_MINE)])
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(
                f"{lab} is not started, and NANOVLLM_CODE={_CODE} asks for your own code of it; "
                f"start it with `lab start {lab}`.",
                name=name,
            )
        return spec


if _CODE == "":
    __path__ = [str(_MINE), str(_REFERENCE)]
elif _CODE in ("reference", "mine", *_PACKAGE_OF_LAB):
    __path__ = [str(_REFERENCE)]
    sys.meta_path.insert(0, _PerLab)
else:
    raise ImportError(
        f"NANOVLLM_CODE={_CODE!r} is not known; use reference, mine, one lab "
        f"({', '.join(_PACKAGE_OF_LAB)}), or unset it for your code where there is some."
    )


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nanovllm' has no attribute {name!r}")
