"""Lets an event loop use an engine that blocks: a thread that steps, a stream for each request."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from nanovllm.batching.events import EngineEvent
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.errors import EngineDeadError
from nanovllm.serving.stepping import Observer, SteppingEngine, show
from nanovllm.serving.stream import Stream

# lab07 task 1: this file is yours to write. Its interface stands in labs/lab07/README.md.
