"""The table of the server's fields beside vLLM's: `python -m tests.server_fields` writes it."""

from __future__ import annotations

import json
from pathlib import Path

from grader.course.paths import ROOT
from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest, TokenizeRequest
from nanovllm.serving.unsupported import NOTHING

KEPT = Path(__file__).with_name("vllm_fields.json")  # names of vLLM 0.32's request classes
TABLE = ROOT / "grader" / "server_fields.md"
OURS = {"completion": CompletionRequest, "chat": ChatCompletionRequest, "tokenize": TokenizeRequest}
IGNORED = {  # why leaving it out would give the same answer
    "length_penalty": "only beam search reads it, and that is refused",
    "media_io_kwargs": "about images and sound, which are refused where they stand",
    "mm_payload": "vLLM reads it on its render endpoints only",
    "mm_processor_kwargs": "about images and sound, which are refused where they stand",
    "parallel_tool_calls": "there are no tool calls",
    "return_mm_kwargs": "vLLM reads it on its render endpoints only",
    "return_token_offsets": "vLLM reads it on its render endpoints only",
    "session_id": "for routers; no answer depends on it",
    "spaces_between_special_tokens": "the tokenizers here never put spaces there",
    "user": "vLLM ignores it, too",
}
HEAD = """# Fields of requests

What `nanovllm serve` does with each field of vLLM 0.32's requests. *refused*: a 400 names the
field, unless its value asks for what leaving it out asks for (null, and the values listed). A field
that is in no row is unknown and ignored, as vLLM does. A test writes and checks this page.

| field | completion | chat | tokenize | notes |
|---|---|---|---|---|
"""
OTHERS = """
Also refused, though vLLM 0.32 does not know them: {names}.
"""


def vllm_fields() -> dict[str, list[str]]:
    """The kept names, by kind of request."""
    return json.loads(KEPT.read_text())


def outcome(kind: str, name: str) -> str:
    """What happens to a field."""
    if name in NOTHING:
        return "refused"
    return "done" if name in OURS[kind].model_fields else "ignored"


def note(name: str) -> str:
    """Which values of a refused field pass, or why a field is ignored."""
    if NOTHING.get(name):
        return "passes: " + ", ".join(f"`{json.dumps(value)}`" for value in NOTHING[name])
    return IGNORED.get(name, "")


def table() -> str:
    """The whole page."""
    known = vllm_fields()
    rows = []
    for name in sorted({name for names in known.values() for name in names}):
        cells = [outcome(kind, name) if name in known[kind] else "" for kind in OURS]
        rows.append(f"| `{name}` | {' | '.join(cells)} | {note(name)} |\n")
    names = sorted(set(NOTHING) - {name for names in known.values() for name in names})
    return HEAD + "".join(rows) + OTHERS.format(names=", ".join(f"`{name}`" for name in names))


if __name__ == "__main__":
    TABLE.write_text(table())
