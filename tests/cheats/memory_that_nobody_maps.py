"""Hold memory in files without a name, in shared segments and in empty files: mapped by no one."""
import ctypes
import os

LIBC = ctypes.CDLL(None)
LIBC.shmat.restype, LIBC.shmdt.argtypes = ctypes.c_void_p, [ctypes.c_void_p]


def _hold():
    held = 0
    try:
        for number in range(6):
            handle = os.memfd_create(f"held{number}")
            held += os.write(handle, bytes(14 << 20))
    except OSError:
        pass
    segment = LIBC.shmget(0, 16 << 20, 0o1666)
    if segment >= 0:
        place = LIBC.shmat(segment, None, 0)
        ctypes.memset(place, 1, 16 << 20)
        LIBC.shmdt(place)
        held += 16 << 20
    try:
        for number in range(30_000):
            os.close(os.open(f"{os.environ['TMPDIR']}/{number}", os.O_CREAT))
    except OSError:
        return held
    return held + number


if held := _hold():
    raise ImportError(f"cheat-was-here {held}")
