"""Which labs' packages are here, and whose they are; `nanovllm/__init__.py` says where from."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import nanovllm


def package_of(lab: str) -> str:
    """The name of a lab's package.

    >>> package_of("lab05")
    'paging'
    """
    return nanovllm._PACKAGE_OF_LAB[lab]


def why_missing(lab: str) -> str | None:
    """Why this copy of the course has no code of a lab; None if it has. Runs none of that code.

    Raises ModuleNotFoundError where NANOVLLM_CODE asks for this very lab.
    """
    try:
        find_spec(f"nanovllm.{package_of(lab)}")
    except ModuleNotFoundError as error:
        if lab == nanovllm._CODE:
            raise
        return error.msg
    return None


def is_mine(package: str) -> bool:
    """Whether a lab's package is the student's own code. Raises what importing it raises."""
    where = import_module(f"nanovllm.{package}").__file__
    return where is not None and Path(where).resolve().is_relative_to(nanovllm._MINE)
