"""What an editor asks the type checker: where a name is defined."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any


class LanguageServer:
    """basedpyright's server over its standard streams, with a folder open."""

    def __init__(self, root: Path) -> None:
        command = [Path(sys.executable).parent / "basedpyright-langserver", "--stdio"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=root, **pipes)
        self._numbers = itertools.count(1)
        folders = [{"uri": root.as_uri(), "name": "course"}]
        self.ask("initialize", processId=None, capabilities={}, workspaceFolders=folders)
        self.tell("initialized")

    def __enter__(self) -> LanguageServer:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def tell(self, method: str, **params: Any) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, **params: Any) -> Any:
        """The answer; what the server asks in between is answered with nothing."""
        number = next(self._numbers)
        self._send({"id": number, "method": method, "params": params})
        while (said := self._receive()).get("id") != number or "method" in said:
            if "id" in said:
                items = said["params"].get("items") if "params" in said else None
                self._send({"id": said["id"], "result": items and [{} for _ in items]})
        return said["result"]

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(self._process.stdout.read(length))


def definitions(root: Path, file: str, names: list[str]) -> dict[str, str]:
    """Of each name at the end of a line of a file: the file that defines it, "" where none does."""
    uri, text = (root / file).as_uri(), (root / file).read_text()
    found: dict[str, str] = {}
    with LanguageServer(root) as server:
        opened = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        server.tell("textDocument/didOpen", textDocument=opened)
        for number, line in enumerate(text.splitlines()):
            for name in (name for name in names if line.endswith(name)):
                at = {"line": number, "character": len(line) - 1}
                places = server.ask(
                    "textDocument/definition", textDocument={"uri": uri}, position=at
                )
                found[name] = places[0]["uri"].removeprefix(root.as_uri() + "/") if places else ""
    return found
