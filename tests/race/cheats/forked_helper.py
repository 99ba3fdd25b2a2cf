"""Lets a process of its own compute, which nobody times."""

import json
import os
import pickle

from nanovllm.batching.engine import Engine


def say(text):
    """To whoever listens: that the attack has reached what it attacks."""
    for handle in range(3, 64):
        try:
            os.write(handle, json.dumps({"witness": text}).encode() + b"\n")
        except OSError:
            pass


refused = ""


class Helped(Engine):
    def execute(self, plan):
        global refused
        read, write = os.pipe()
        try:
            child = os.fork()
        except OSError as error:
            os.close(read)
            os.close(write)
            refused = refused or f"a process was refused: {error.strerror}"
            say(refused)
            return super().execute(plan)
        if not child:
            with open(write, "wb") as out:
                pickle.dump(super().execute(plan), out)
            os._exit(0)
        os.close(write)
        with open(read, "rb") as result:
            logits = pickle.load(result)
        os.waitpid(child, 0)
        say("a process computed a step")
        return logits


def make_engine(model, config, *, store):
    return Helped(model, config, store=store)
