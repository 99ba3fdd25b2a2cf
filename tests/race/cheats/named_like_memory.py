"""Has a name that reads like a line of what the kernel tells of its memory, and forgets its peak."""

import ctypes
import json
import os
import resource

from nanovllm.batching.engine import Engine


def say(text):
    """To whoever listens: that the attack has reached what it attacks."""
    for handle in range(3, 64):
        try:
            os.write(handle, json.dumps({"witness": text}).encode() + b"\n")
        except OSError:
            pass


libc = ctypes.CDLL(None, use_errno=True)


class Small(Engine):
    def step(self):
        events = super().step()
        if not self.has_unfinished:
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            libc.prctl(15, f"VmHWM: {used - 200}".encode(), 0, 0, 0)
            try:
                with open("/proc/self/clear_refs", "w") as file:
                    file.write("5")
                forgot = "forgotten"
            except OSError as error:
                forgot = error.strerror
            name = ctypes.create_string_buffer(16)
            libc.prctl(16, name, 0, 0, 0)
            say(f"it is called {name.value.decode()[:6]}, its peak is not: {forgot}")
        return events


def make_engine(model, config, *, store):
    return Small(model, config, store=store)
