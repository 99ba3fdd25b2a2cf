"""Start the engine on the code that --code names."""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import nanovllm
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import SamplingOptions

if TYPE_CHECKING:
    from nanovllm.generation.params import SamplingParams
    from nanovllm.llm import LLM


def select_code(code: str | None) -> None:
    """Make `nanovllm` find its labs where `code` says; before any lab is imported."""
    labs = nanovllm._PACKAGE_OF_LAB
    if code is None:
        return
    if code not in ("reference", "mine", *labs):
        raise Refused(
            f"--code {code} is not known: use reference, mine or one of {', '.join(labs)}."
        )
    if code in labs and not (nanovllm._MINE / labs[code]).is_dir():
        raise Refused(
            f"{code} is not started, so --code {code} has nothing of yours to run; start it with "
            f"`lab start {code}`, or use --code reference."
        )
    os.environ["NANOVLLM_CODE"] = code
    importlib.reload(sys.modules["nanovllm"])


def load_engine(code: str | None = None, **options: Any) -> "LLM":
    """Return an LLM with `options` on the code that `code` names."""
    select_code(code)
    from nanovllm.llm import LLM

    return LLM(**options)


def announce(llm: "LLM") -> None:
    """Say which engine answers, and why no better one, where it is not the best of the course."""
    from nanovllm.cli.screen import complain

    if llm.level.why_not_higher is not None:
        complain(f"the engine is {llm.engine_name}: {llm.level.why_not_higher}.")


def params_of(sampling: SamplingOptions, **more: Any) -> "SamplingParams":
    """Return the SamplingParams; ParamsError says what is wrong with them."""
    if more.get("n", 1) > 1 and sampling.temperature == 0:
        raise Refused(
            f"--n {more['n']} needs chance, as greedy answers are equal; add --temperature 0.8."
        )
    return sampling.params(**more)
