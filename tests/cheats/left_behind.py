"""Leave a process and a thread behind that outlive the grading, and write when it is over."""
import os
import threading
import time


def _stay():
    time.sleep(3)
    for folder in ("/tmp", "/dev/shm", "/var/tmp", os.environ.get("TMPDIR", "/tmp"), "/box"):
        try:
            open(f"{folder}/cheat-was-here", "w").close()
        except OSError:
            pass
    time.sleep(600)


for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for handle in range(3):
                os.close(handle)
            _stay()
        os._exit(0)
threading.Thread(target=_stay, daemon=False).start()
