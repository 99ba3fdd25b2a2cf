"""A fork has none of the threads that torch computes with, and waits for them for ever."""

from __future__ import annotations

import os

import torch

_threads_used = _forked = False


def check_fork() -> None:
    """Before anything is computed. Raises RuntimeError where that would never end."""
    if _forked and torch.get_num_threads() > 1:
        raise RuntimeError(
            "This process was forked from one that has an LLM, and torch's threads are gone in it; "
            "fork before the first LLM is made, or start processes with multiprocessing's 'spawn'."
        )


def note_threads() -> None:
    """A model was loaded here, perhaps by several threads."""
    global _threads_used
    _threads_used = _threads_used or torch.get_num_threads() > 1


def _in_child() -> None:
    global _forked
    _forked = _threads_used


os.register_at_fork(after_in_child=_in_child)
