"""Take all memory, in many processes that each keep to the limit."""
import os
import time


def may_follow(old, new):
    for _ in range(20):
        if os.fork() == 0:
            held = bytearray(os.urandom(1 << 20) * 60)
            time.sleep(60)
            os._exit(len(held) & 1)
    time.sleep(60)
