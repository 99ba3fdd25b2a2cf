"""Run a server with uvicorn: sockets, signals, the way down (given)."""

import asyncio
import gc
import logging
import socket
from typing import Protocol

import uvicorn
from fastapi import FastAPI

log = logging.getLogger("nanovllm.serving")
GRACE = 5.0  # seconds for cut-short answers to be sent, after the drain


class Drains(Protocol):
    """An app, and what ends its requests in good order."""

    app: FastAPI

    async def drain(self) -> None: ...


class GracefulServer(uvicorn.Server):
    """Told to stop, it first drains: what is open is finished, what is new is refused with a 503.

    A second signal stops it at once.
    """

    def __init__(self, server: Drains, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server = server

    async def main_loop(self) -> None:
        await super().main_loop()
        draining = asyncio.ensure_future(self.server.drain())
        while not draining.done() and not self.force_exit:
            await asyncio.sleep(0.05)
        draining.cancel()

    def handle_exit(self, sig: int, frame: object) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def run(server: Drains, sock: socket.socket) -> None:
    """Serve on a bound socket until a signal says stop.

    What is here by then stays: the garbage collector need not look through a model at every turn.
    """
    allow_open_files()
    gc.collect()
    gc.freeze()
    config = uvicorn.Config(
        server.app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(GRACE),
        timeout_keep_alive=30,
    )
    GracefulServer(server, config).run(sockets=[sock])


def allow_open_files(wanted: int = 65_536) -> None:
    """Each connection is an open file: raise this process's soft limit as far as it may be."""
    try:
        import resource
    except ImportError:  # no such limit on this system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (ValueError, OSError) as error:
            log.warning("the limit of open files stays at %s: %s", soft, error)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
