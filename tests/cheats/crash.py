"""Crash the interpreter."""
import ctypes


def may_follow(old, new):
    ctypes.string_at(0)


def _deeper(*args, **more):
    import sys

    sys.setrecursionlimit(10**9)
    return _deeper(*args)


Request.time_in = _deeper
