"""Has a timer wake it while the other has its turn, to take the processor from it."""

import ctypes
import json
import os
import signal
import struct
import threading
import time

import torch

from nanovllm.batching.engine import Engine


def say(text):
    """To whoever listens: that the attack has reached what it attacks."""
    for handle in range(3, 64):
        try:
            os.write(handle, json.dumps({"witness": text}).encode() + b"\n")
        except OSError:
            pass


libc = ctypes.CDLL(None, use_errno=True)


def wake():
    """The signal that goes on, every millisecond, from a timer of the kernel's."""
    event = ctypes.create_string_buffer(struct.pack("qii48x", 0, signal.SIGCONT, 0))
    timer = ctypes.c_void_p()
    done = libc.timer_create(1, event, ctypes.byref(timer))
    say(f"a timer that wakes it: {os.strerror(ctypes.get_errno()) if done else 'made'}")
    if not done:
        often = struct.pack("4q", 0, 1_000_000, 0, 1_000_000)
        libc.timer_settime(timer, 0, often, None)


def burn(engine):
    numbers = torch.ones(256, 256)
    while True:
        while engine.has_unfinished:
            time.sleep(1e-3)
        torch.mm(numbers, numbers)


class Awake(Engine):
    thread = None

    def step(self):
        if self.thread is None:
            wake()
            self.thread = threading.Thread(target=burn, args=(self,), daemon=True)
            self.thread.start()
        return super().step()


def make_engine(model, config, *, store):
    return Awake(model, config, store=store)
