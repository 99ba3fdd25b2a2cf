"""Wait for a lock that nobody will release, with signals blocked."""
import signal
import threading

LOCK = threading.Lock()


def may_follow(old, new):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
    LOCK.acquire()
    LOCK.acquire()
