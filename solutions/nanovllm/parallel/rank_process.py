"""The process of one rank: `python -m nanovllm.parallel.rank_process FD RANK` (given)."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading


def main(fd: int, rank: int) -> None:
    """Get the spec from the line, then be a worker on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's affair
    threading.Thread(target=end_with_driver, daemon=True).start()
    from nanovllm.parallel.line import Line, LineError
    from nanovllm.parallel.wire import from_bytes
    from nanovllm.parallel.worker import run_worker

    # No limit: a driver whose user thinks between two calls leaves an answer unread for hours.
    line = Line(socket.socket(fileno=fd), patience=0)
    try:
        spec = from_bytes(line.receive())
    except LineError:
        return
    run_worker(line, lambda: spec.load(rank))


def end_with_driver() -> None:
    """Standard input closes when the driver ends, by whatever signal; a rank may be busy then."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # a thread still reads standard input, and the line's other end is closed already
