"""Send results without end."""
import os

block = b"x" * (1 << 20)
for handle in range(3, 256):
    try:
        while True:
            os.write(handle, block)
    except OSError:
        pass
