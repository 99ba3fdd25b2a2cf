"""Files that a command writes at its end: whether it can is asked before the work."""

import os
from pathlib import Path

import typer

from nanovllm.cli.errors import Refused

PICTURES = (".png", ".svg", ".pdf")


def check_can_write(option: str, path: Path | None) -> None:
    """Raises Refused where this file cannot be made, or made anew."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise Refused(f"{option} {path} cannot be written: there is no folder {path.parent}.")
    if path.is_dir():
        raise Refused(f"{option} {path} is a folder; name a file in it.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Refused(f"{option} {path} may not be written by you; name another place.")


def writable(param: typer.CallbackParam, path: Path | None) -> Path | None:
    """An option's callback: refuses a file that could not be written at the end."""
    check_can_write(param.opts[0], path)
    return path


def picture(param: typer.CallbackParam, path: Path | None) -> Path | None:
    """The same for a picture, whose ending says which kind it is."""
    if path is not None and path.suffix not in PICTURES:
        raise Refused(f"{param.opts[0]} {path} must end in {', '.join(PICTURES)}.")
    return writable(param, path)
