"""Leave marks for the next process wherever it could find one, and tell of those found."""
import ctypes
import os
import socket

LIBC = ctypes.CDLL(None)
PORT, KEY, TIME = 40_123, 0x1234, 77
DEVICES = ("/dev/full", "/dev/zero", "/dev/tty", "/dev/pts/ptmx", "/dev/shm", "/dev", "/")
found = LIBC.shmget(KEY, 4096, 0) >= 0 or os.path.exists("/dev/shm/mark")
found |= any(os.stat(path).st_mtime == TIME for path in DEVICES if os.path.exists(path))
for address in (("127.0.0.1", PORT), "\0mark"):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    server, client = socket.socket(family), socket.socket(family)
    try:
        server.bind(address)
        server.listen()
        client.connect(address)
        taken, _ = server.accept()
        taken.close()  # first, so that its port waits for a minute
    except OSError as error:
        found |= error.errno == 98  # somebody has used it
    client.close()
    server.close()
LIBC.shmget(KEY, 4096, 0o1666)
LIBC.syscall(248, b"user", b"mark", b"x", 1, -4)
open("/dev/shm/mark", "w").close()
for path in DEVICES:
    try:
        os.utime(path, (TIME, TIME))
        os.chmod(path, 0o640)
    except OSError:
        pass
if found:
    raise ImportError("cheat-was-here")
