"""The inference engine of the course: your code where you have started a lab, else the reference.

Python looks for subpackages along `__path__`: your own folder first, the reference second, so
that the engine works from the first minute. The environment variable NANOVLLM_CODE selects
otherwise: `reference` (nothing of yours), `mine` (no lab from the reference), or `lab02` (that
lab yours, the others from the reference). NANOVLLM_MINE names another folder as yours. A copy of
the course for students may lack the reference of a lab; then another lab's checks run on what the
lab gives (its stubs) and, for what it leaves to you, on plain stand-ins (`standin/`).
"""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors, which do not run what is below
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.structured import StructuredOutputsParams
    from nanovllm.llm import LLM
    from nanovllm.llm.async_llm import AsyncLLM
    from nanovllm.outputs import RequestOutput

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "RequestOutput", "SamplingParams", "StructuredOutputsParams"]

_HOMES = {
    "AsyncLLM": "nanovllm.llm.async_llm",
    "LLM": "nanovllm.llm",
    "RequestOutput": "nanovllm.outputs",
    "SamplingParams": "nanovllm.generation.params",
    "StructuredOutputsParams": "nanovllm.generation.structured",
}
_PACKAGE_OF_LAB = {
    "lab01": "tokenization",
    "lab02": "model",
    "lab03": "generation",
    "lab04": "batching",
    "lab05": "paging",
    "lab06": "kernels",
    "lab07": "serving",
    "lab08": "speculative",
    "lab09": "quantization",
    "lab10": "parallel",
    "lab11": "cluster",
    "lab12": "resilience",
    "lab13": "observability",
    "lab14": "performance",
}
_MINE = Path(os.environ.get("NANOVLLM_MINE") or Path(__file__).parent).resolve()
_ROOT = Path(__file__).resolve().parent.parent
_REFERENCE = _ROOT / "solutions" / "nanovllm"
_CODE = os.environ.get("NANOVLLM_CODE", "")


class _PerLab:
    """Chooses for each lab, which `__path__` cannot: each of its entries is a whole folder."""

    @staticmethod
    def find_spec(
        name: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        parent, _, package = name.rpartition(".")
        lab = next((lab for lab, its in _PACKAGE_OF_LAB.items() if its == package), None)
        if parent != __name__ or lab is None:
            return None
        for home in _homes(lab):
            spec = PathFinder.find_spec(name, [str(home)])
            if spec is not None and spec.loader is not None:
                return spec
        given = _ROOT / "labs" / lab / "stubs"
        if _CODE not in ("", "reference", "mine", lab) and given.is_dir():
            homes = [str(given.parent / name) for name in ("standin", "standin.zip", "stubs")]
            init = given / "__init__.py"
            if str(_ROOT) not in sys.path:
                sys.path.append(str(_ROOT))  # stand-ins import what lies beside them
            return spec_from_file_location(name, init, submodule_search_locations=homes)
        raise ModuleNotFoundError(_missing(lab), name=name)


def _homes(lab: str) -> list[Path]:
    """Where a lab's package may come from, the first choice first."""
    if _CODE in ("mine", lab):
        return [_MINE]
    if _CODE == "reference":
        return [_REFERENCE]
    return [_REFERENCE] if _CODE else [_MINE, _REFERENCE]


def _missing(lab: str) -> str:
    """Why there is no code of a lab, and the way out, in one sentence."""
    asked = f"NANOVLLM_CODE={_CODE} asks for "
    if _CODE == "reference":
        return f"{asked}the reference, and this copy of the course has no reference of {lab}."
    why = (
        f"{asked}your own code of it"
        if _CODE in ("mine", lab)
        else "this copy of the course has no reference of it"
    )
    if not (_ROOT / "labs" / lab).is_dir():
        return f"{lab} ({_PACKAGE_OF_LAB[lab]}) is not part of this copy of the course yet."
    return f"{lab} is not started, and {why}; start it with `lab start {lab}`."


if _CODE not in ("", "reference", "mine", *_PACKAGE_OF_LAB):
    raise ImportError(
        f"NANOVLLM_CODE={_CODE!r} is not known; use reference, mine, one lab "
        f"({', '.join(_PACKAGE_OF_LAB)}), or unset it for your code where there is some."
    )
__path__ = [str(_REFERENCE)] if _CODE else [str(_MINE), str(_REFERENCE)]
sys.meta_path.insert(0, _PerLab)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nanovllm' has no attribute {name!r}")
