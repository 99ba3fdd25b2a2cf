"""Leaves a thread behind that keeps the processor busy while others are timed."""

import json
import os
import threading
import time

from nanovllm.batching.engine import Engine


def say(text):
    """To whoever listens: that the attack has reached what it attacks."""
    for handle in range(3, 64):
        try:
            os.write(handle, json.dumps({"witness": text}).encode() + b"\n")
        except OSError:
            pass


turns = 0


def burn():
    global turns
    end = time.monotonic() + 120
    while time.monotonic() < end:
        turns += 1
        time.sleep(0)


class Burning(Engine):
    def step(self):
        events = super().step()
        if not self.has_unfinished:
            say(f"the thread has burnt {turns} turns")
        return events


def make_engine(model, config, *, store):
    if threading.active_count() == 1:
        threading.Thread(target=burn, daemon=True).start()
    return Burning(model, config, store=store)
