"""Turn what went wrong into one sentence with the way out."""

import errno
import os
import re
import sys
import traceback
from pathlib import Path

import typer

import nanovllm

USER, CODE = 2, 1  # exit codes: what was asked cannot be done; code that ran is wrong
_NOT_WRITTEN = re.compile(r"^lab(\d\d) task (\d+): (.+)$")
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT)
_TRACEBACK = "NANOVLLM_TRACEBACK"
_REFUSALS = {
    "nanovllm.llm.read_options": ("OptionError",),
    "nanovllm.bench.process": ("ContestantError",),
    "nanovllm.bench.serve_client": ("ServerError",),
    "nanovllm.model.errors": ("ModelFolderError",),
    "nanovllm.tokenization.errors": ("TokenizerError", "ChatTemplateError"),
    "nanovllm.generation.errors": ("RequestError",),
    "nanovllm.generation.params": ("ParamsError",),
    "nanovllm.batching.errors": ("ConfigError",),
    "nanovllm.quantization.errors": ("QuantizationError",),
    "nanovllm.cluster.errors": ("ClusterError",),
    "nanovllm.observability.errors": ("ObservabilityError",),
    "nanovllm.parallel.errors": ("ParallelError", "ExecutorDied"),
}


class Refused(typer.TyperException):
    """What was asked cannot be done; the message is one sentence that says the way out."""

    exit_code = USER


def explain(error: Exception) -> tuple[str, int]:
    """Return the sentence and the exit code for `error`."""
    if isinstance(error, Refused) or _is_refusal(error):
        return str(error), USER
    if is_unwritable(error):
        why = os.strerror(errno.ENOSPC)
        return f"what comes out cannot be written: {why}; make room, or send it elsewhere.", USER
    if isinstance(error, typer.TyperException):
        sentence = " ".join(error.format_message().split()).rstrip(".")
        return f"{sentence}; `{_command(error)} --help` lists what there is.", error.exit_code
    missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    if isinstance(error, ModuleNotFoundError) and missing.startswith("nanovllm."):
        here = _has_reference(missing.split(".")[1])
        return error.msg + " Or add --code reference." * here, USER
    where, is_students = _where(error)
    not_written = _NOT_WRITTEN.match(_absent(error))
    if not_written:
        lab, task, symbol = not_written.groups()
        here = _has_reference(nanovllm._PACKAGE_OF_LAB[f"lab{lab}"])
        way_out = "Write it" + (", or run this with --code reference" if here else _lower(lab))
        return f"lab{lab} task {task} is not written yet: {symbol} ({where}). {way_out}.", USER
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    owner = "your code raised" if is_students else "an error in the course's code:"
    way_out = " --code reference tells whether it is yours;" if is_students else ""
    return f"{owner} {what} ({where}).{way_out} {_TRACEBACK}=1 shows the traceback.", CODE


def is_unwritable(error: BaseException) -> bool:
    """Whether stdout, or a file, has no room."""
    return isinstance(error, OSError) and error.errno in _UNWRITABLE


def _absent(error: Exception) -> str:
    """The task and the name of what is not written yet, by a stub's error or by a name not there.

    A file that starts empty has no stub: the course's tooling knows which names it is to have.
    """
    if isinstance(error, NotImplementedError):
        return str(error)
    if not isinstance(error, ImportError | AttributeError):
        return ""
    from grader.checks.unwritten import unwritten

    return str(unwritten(error) or "")


def _has_reference(package: str) -> bool:
    """Whether this copy of the course holds the reference of a lab's package."""
    return (nanovllm._REFERENCE / package).is_dir()


def _lower(lab: str) -> str:
    """How to do without a lab that is only begun, where an LLM was to run on it."""
    rungs = sys.modules.get("nanovllm.llm.engine_levels")
    engine = rungs.below(f"lab{lab}") if rungs else None
    return f", or run this with --engine {engine}" if engine else ""


def _is_refusal(error: Exception) -> bool:
    """Whether a lab or LLM refuses what was asked; imports no lab, as that may be what failed."""
    return any(
        isinstance(error, getattr(sys.modules[module], name, ()))
        for module, names in _REFUSALS.items()
        if module in sys.modules
        for name in names
    )


def _command(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context else "nanovllm"


def fail(error: Exception) -> int:
    """Print `error` for the user to stderr and return the exit code."""
    from nanovllm.cli.screen import complain

    sentence, code = explain(error)
    if os.environ.get(_TRACEBACK):
        traceback.print_exception(error)
    complain(sentence)
    return code


def _where(error: BaseException) -> tuple[str, bool]:
    """Return file:line of the innermost frame in the student's code, else of the innermost."""
    mine = nanovllm._MINE
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    package = Path(nanovllm.__file__).resolve()
    for name, line in reversed(frames):
        path = Path(name).resolve()
        if path.is_relative_to(mine) and path != package:
            return f"{mine.name}/{path.relative_to(mine)}:{line}", True
    name, line = frames[-1] if frames else ("?", 0)
    return f"{Path(name).name}:{line}", False
