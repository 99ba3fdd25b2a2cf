"""The socket that a command listens on."""

import socket

from nanovllm.cli.errors import Refused


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises Refused."""
    from nanovllm.serving.run import bind

    try:
        return bind(host, port)
    except OSError as error:
        raise Refused(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port."
        ) from None
