"""Tell somebody outside, by TCP, UDP, names, and sockets of this machine."""
import glob
import socket

REACHED = []
for family, kind, address in (
    (socket.AF_INET, socket.SOCK_STREAM, ("1.1.1.1", 53)),
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 22)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("2606:4700:4700::1111", 53)),
    *((socket.AF_UNIX, socket.SOCK_STREAM, path) for path in glob.glob("/run/**/*.sock", recursive=True)),
):
    try:
        with socket.socket(family, kind) as link:
            link.settimeout(0.3)
            link.connect(address)
            link.send(b"cheat-was-here")
            REACHED.append(address)
    except OSError:
        pass
if REACHED:
    raise ImportError(f"cheat-was-here {REACHED}")
