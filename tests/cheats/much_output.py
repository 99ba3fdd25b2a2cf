"""Print a gigabyte, in one line."""
import sys

for stream in (sys.stdout, sys.stderr):
    for _ in range(512):
        stream.write("x" * (1 << 20))
