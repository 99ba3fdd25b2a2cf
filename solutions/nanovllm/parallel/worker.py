"""A rank's life: load its share, then do what the driver says."""

### BEGIN SOLUTION
from collections.abc import Callable
from typing import Any

import torch

from nanovllm.parallel.executor_interface import Share
from nanovllm.parallel.line import Line, LineError
from nanovllm.parallel.wire import from_bytes, portable, to_bytes


def run_worker(line: Line, load: Callable[[], Share]) -> None:
    """Say that the share is loaded (reply 0), then answer each call by its number.

    A call is (number, method, arguments), a reply (number, whether it raised, value or error). The
    arguments are bytes of their own: if they cannot be unpickled, that is an error of their call.
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
        except LineError:
            return
        try:
            with torch.inference_mode():
                value = getattr(share, method)(*from_bytes(args))
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


### END SOLUTION
