"""Start threads without end, each with a small stack."""
import threading
import time

threading.stack_size(1 << 16)


def may_follow(old, new):
    try:
        while True:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    finally:
        time.sleep(60)
