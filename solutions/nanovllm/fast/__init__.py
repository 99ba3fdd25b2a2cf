"""The fast CPU path: lab 04's engine and lab 05's books, with a step compiled for this machine.

Not part of what the labs teach. `available` says why it cannot be used; `fast_engine` makes an
engine with the face of the plain one, which it is until the native step is ready.
"""

from nanovllm.fast.availability import FastPathError, available
from nanovllm.fast.engine import FastEngine, fast_engine

__all__ = ["FastEngine", "FastPathError", "available", "fast_engine"]
