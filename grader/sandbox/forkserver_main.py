"""The fork server: a process with everything heavy imported, which forks workers.

Started once a lab, inside bubblewrap where there is one, by `grader.sandbox.forkserver`. It never
looks at a submission: each fork of it (`server.py`) gets a socket of its own, and what the fork is
told there the fork server does not see. It lives as long as its own socket.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import traceback

from grader.sandbox import memory_use, seccomp, worker_main
from grader.sandbox.hugepages import collapse
from grader.sandbox.preload import prepare
from grader.sandbox.process_rights import undumpable

MESSAGE = 64


def main() -> None:
    """Serve the socket whose number is the first argument; then come the level and the lab."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    level, lab = sys.argv[2:]
    gc.disable()  # nothing is let go while the modules come in, and looking for it takes a second
    prepare(lab)
    seccomp.missing()  # made once, for all forks
    undumpable()
    gc.collect()
    gc.freeze()
    gc.enable()
    collapse()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a worker here
    link.sendall(b'{"ready": true}')
    while True:
        message, handles, _, _ = socket.recv_fds(link, MESSAGE, 1)
        if not message:
            return
        _fork(link, handles[0], level)


def _fork(link: socket.socket, handle: int, level: str) -> None:
    """Fork a worker that serves `handle`; answer with its number and a handle to end it."""
    pid = os.fork()
    if pid == 0:
        try:
            link.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            worker_main.serve(socket.socket(fileno=handle), level)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(handle)
    ends = memory_use.end_of(pid)
    socket.send_fds(link, [json.dumps({"pid": pid}).encode()], ends)
    for end in ends:
        os.close(end)


if __name__ == "__main__":
    main()
