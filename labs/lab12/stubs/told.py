"""A streamed answer as a router sees it: enough to go on with it at another server (given)."""

from __future__ import annotations

import secrets
from typing import Any

from nanovllm.batching.events import EngineEvent, Queued
from nanovllm.generation.events import Completion, Finished, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.resilience.entry import Entry

MOST_CHOICES = 1024
FIELD = "output_token_ids"


class LostError(Exception):
    """A server that will not end its answer: another one may."""


class ToldAnswer:
    """What the client has of an answer, by the chunks that went through; `Entry` keeps it.

    A chunk of our servers says the ids of its tokens where the request has `output_token_ids`. Of
    others' chunks nothing is known: once something of such an answer was told, nobody goes on with
    it.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = seeded(body)
        self._begun = list(body.get(FIELD) or ())  # by whoever asked
        self._shows_ids = bool(body.get("return_token_ids")) or body.get(FIELD) is not None
        options = body.get("stream_options") or {}
        self._owes_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        scored = body.get("logprobs") is not None and body["logprobs"] is not False
        params = SamplingParams(n=_choices(body), logprobs=1 if scored else None)
        self._entry = Entry(0, (), params, seed=0)
        self._head: dict[str, Any] = {}
        self._blind = False

    @property
    def can_go_on(self) -> bool:
        """Whether another server can tell the rest."""
        return not self._blind

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return self._entry.ended and not self._owes_usage

    def body(self) -> dict[str, Any]:
        """What to ask a server for, which is new to this request."""
        told = () if self._entry.ended else self._entry.resume()
        return self._body | {FIELD: [*self._begun, *told]}

    def hear(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """A chunk as the client gets it; None if it has it already.

        Raises LostError where the server gives up.
        """
        if "error" in chunk:
            if status_of(chunk["error"]) >= 500:
                raise LostError(str(chunk["error"].get("message")))
            return chunk
        choices = chunk.get("choices", [])
        if any(cut_short(choice) for choice in choices):
            raise LostError("it stopped in the middle of its answer")
        new = [choice for choice in choices if self._is_new(choice)]
        if choices and not new:
            return None
        if not choices and chunk.get("usage"):
            self._owes_usage = False
        self._head = self._head or {
            name: chunk[name] for name in ("id", "created") if name in chunk
        }
        return chunk | self._head | {"choices": new}

    def _is_new(self, choice: dict[str, Any]) -> bool:
        """Note what a choice says; whether the client has not heard it."""
        index, ends = choice.get("index", 0), choice.get("finish_reason") is not None
        ids = choice.get("token_ids")
        silent = ids is None and (_says(choice) or ends)
        if silent or index >= len(self._entry.samples):
            self._blind = True
            return True
        if not self._shows_ids:
            choice.pop("token_ids", None)
        events: list[EngineEvent] = [TokenGenerated(0, index, one, "", 0.0) for one in ids or ()]
        if ends:
            events.append(Finished(0, index, Completion(index, (), "", "stop"), 0.0))
        heard = [self._entry.hear(event) for event in events or [Queued(0, index, 0.0)]]
        return any(heard)


def cut_short(choice: dict[str, Any]) -> bool:
    """Whether the server stopped before this choice was whole; nobody had asked it to."""
    return choice.get("finish_reason") == "abort" and choice.get("stop_reason") is None


def seeded(body: dict[str, Any]) -> dict[str, Any]:
    """The body with a seed: two servers give it one answer."""
    return body if body.get("seed") not in (None, -1) else body | {"seed": secrets.randbits(31)}


def _choices(body: dict[str, Any]) -> int:
    """How many choices an answer has; 1 for a body that is refused anyway."""
    prompt, n = body.get("prompt"), body.get("n")
    count = n if isinstance(n, int) and n > 0 else 1
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        count *= len(prompt)
    return count if count <= MOST_CHOICES else 1


def _says(choice: dict[str, Any]) -> bool:
    return bool(choice.get("text") or (choice.get("delta") or {}).get("content"))


def status_of(error: Any) -> int:
    """The status that an error says of itself; 500 where it says none."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else 500
