"""Stops every clock of its process, and takes its time."""

import json
import os
import resource
import time

from nanovllm.batching.engine import Engine


def say(text):
    """To whoever listens: that the attack has reached what it attacks."""
    for handle in range(3, 64):
        try:
            os.write(handle, json.dumps({"witness": text}).encode() + b"\n")
        except OSError:
            pass


for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
    setattr(time, name, lambda: 0.0)
    setattr(time, name + "_ns", lambda: 0)
time.clock_gettime = lambda clock: 0.0
os.times = lambda: os.times_result((0.0,) * 5)
resource.getrusage = lambda who: resource.struct_rusage((0.0,) * 16)


class Timeless(Engine):
    def execute(self, plan):
        super().execute(plan)
        say(f"the clock stands at {time.process_time()}")
        return super().execute(plan)


def make_engine(model, config, *, store):
    return Timeless(model, config, store=store)
