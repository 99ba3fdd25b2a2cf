"""Never come back from a call, and let no signal through."""
import signal

import _pytest.runner


def may_follow(old, new):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
