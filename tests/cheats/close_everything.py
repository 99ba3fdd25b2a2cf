"""Close or replace every file of the process."""
import os

null = os.open(os.devnull, os.O_RDWR)
for handle in range(256):
    try:
        os.dup2(null, handle)
    except OSError:
        pass
os.closerange(0, 256)
