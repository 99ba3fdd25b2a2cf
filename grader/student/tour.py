"""The first tour, `make start`: the engine answers, lab 01 starts and is graded, the board."""

from __future__ import annotations

import os
import subprocess
import sys

from rich.console import Console

from grader.course.lab_toml import labs
from grader.course.paths import REFERENCE, ROOT

ENGINE = ("tokenization", "model", "generation")  # what `nanovllm generate` needs
PROMPTS = (
    "Tell me a story about a cat.",
    "What is the capital of France?",
    "What is 12 plus 7?",
    "Mia's code is 7342. Ben's code is 1805. What is Mia's code?",
)
console = Console()


def step(title: str, *command: str, accepted: tuple[int, ...] = (0,)) -> None:
    """Run one command of the tour and show it as the reader would type it."""
    console.rule(f"[bold]{title}")
    shown = " ".join(f'"{word}"' if " " in word or "?" in word else word for word in command)
    console.print(f"$ {shown}", style="dim", markup=False, highlight=False)
    program = {"nanovllm": "nanovllm.cli", "lab": "grader.student.lab_command", "pytest": "pytest"}[
        command[0]
    ]
    done = subprocess.run([sys.executable, "-m", program, *command[1:]], cwd=ROOT, check=False)
    if done.returncode not in accepted:
        raise SystemExit(
            f"`{shown}` ended with exit code {done.returncode}; `lab doctor` may help."
        )


def main() -> None:
    """The four stops of the tour."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    if all((REFERENCE / package).is_dir() for package in ENGINE):  # else it is yours to build
        engine = ["nanovllm", "generate", *PROMPTS, "--chat", "--max-tokens", "96"]
        step("The reference engine answers four prompts at once", *engine, "--code", "reference")
    # 1 is what pytest says of failing checks, which is how a lab begins.
    lab = labs()[0]
    step(
        f"Lab {lab.number:02d}, started and graded",
        "pytest",
        str(lab.folder.relative_to(ROOT)),
        accepted=(0, 1),
    )
    step("Your board", "lab")
    console.rule("[bold]Now it is your turn")
    console.print(
        "1. source .venv/bin/activate\n"
        f"2. read labs/{lab.key}/README.md, open nanovllm/{lab.package}/ in your editor\n"
        f"3. lab watch {lab.number:02d}     checks again each time you save; h gives a hint",
        markup=False,
        highlight=False,
    )


if __name__ == "__main__":
    main()
