"""A rank's life: load its share, then do what the driver says."""

### BEGIN SOLUTION
from collections.abc import Callable
from typing import Any

import torch

from nanovllm.parallel.executor_interface import Share
from nanovllm.parallel.line import Line, LineClosed, LineError
from nanovllm.parallel.wire import from_bytes, to_bytes


def run_worker(line: Line, load: Callable[[], Share]) -> None:
    """Say that the share is loaded (reply 0), then answer each call by its number.

    A call is (number, method, arguments), a reply (number, whether it raised, value or error).
    """
    try:
        share = load()
        facts = share.facts
    except Exception as error:
        _reply(line, 0, True, portable(error))
        return
    heard = _reply(line, 0, False, facts)
    while heard:
        try:
            number, method, args = from_bytes(line.receive())
        except LineClosed:
            return
        try:
            with torch.inference_mode():
                value = getattr(share, method)(*args)
            heard = _reply(line, number, False, value if facts.answers else None)
        except Exception as error:
            heard = _reply(line, number, True, portable(error))


def _reply(line: Line, number: int, raised: bool, value: Any) -> bool:
    """Answer; False if nobody is there to read it."""
    data = to_bytes((number, raised, value))
    try:
        line.send(data)
    except LineError:
        return False
    return True


def portable(error: Exception) -> Exception:
    """The error itself if it comes through the line as it is, else a RuntimeError that tells."""
    try:
        copy = from_bytes(to_bytes(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    except Exception as unfit:  # whatever a foreign class does when it is pickled
        del unfit
    return RuntimeError(f"{type(error).__name__}: {error}")


### END SOLUTION
