"""Record what the engine does while a command runs, and show it step by step at the end."""

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from nanovllm.cli.errors import Refused
from nanovllm.cli.output_files import check_can_write

if TYPE_CHECKING:
    from nanovllm.llm import LLM

_STEPS_SHOWN = 60


class Recording:
    """Between entering and leaving, every event of the engine is kept; then it is drawn."""

    def __init__(self, llm: "LLM", path: Path) -> None:
        self.llm, self.path = llm, path
        self.events: list[Any] = []
        llm.level.require("lab04", "--replay")
        if path.suffix not in (".html", ".htm"):
            raise Refused(f"--replay {path} must be an .html file; for example --replay run.html.")
        check_can_write("--replay", path)

    def __enter__(self) -> Self:
        self.llm.runner.on_event = self.events.append
        return self

    def __exit__(self, kind: type | None, error: object, trace: TracebackType | None) -> None:
        from nanovllm.batching.replay import LEGEND, Replay

        self.llm.runner.on_event = None
        replay = Replay(self.events)
        if kind is None and replay.steps:
            replay.save(self.path, f"nanovllm generate, {self.llm.name}")
            sys.stdout.flush()
            print(f"{replay.text(0, _STEPS_SHOWN)}\n{LEGEND}", file=sys.stderr)
            more = f"the first {_STEPS_SHOWN} of " * (len(replay.steps) > _STEPS_SHOWN)
            print(f"{more}{len(replay.steps)} steps; all of it: {self.path}", file=sys.stderr)
