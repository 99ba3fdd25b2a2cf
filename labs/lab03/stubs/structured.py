"""What the text of an answer must be: vLLM's names (given).

Source: StructuredOutputsParams in vllm/sampling_params.py of vLLM 0.32.
"""

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanovllm.generation.params import ParamsError

KINDS = ("json", "regex", "choice", "grammar", "json_object")
MOST_CHARACTERS = 1 << 16  # longer ones take seconds to compile


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """One of the first five.

    json: a JSON schema, as a text or a dict.  regex: the whole text matches it.  choice: the text
    is one of these.  grammar: a context-free grammar in Lark's form or in GBNF.  json_object: any
    JSON object.  disable_any_whitespace: of JSON, no white space between its parts;
    whitespace_pattern: only such as this regular expression matches.

    >>> StructuredOutputsParams(choice=["yes", "no"]).kind
    'choice'
    >>> StructuredOutputsParams(regex="a+", json_object=True)
    Traceback (most recent call last):
    nanovllm.generation.params.ParamsError: structured_outputs asks for regex and json_object; \
give one of them.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        if self.json is not None and not isinstance(self.json, str):
            object.__setattr__(self, "json", _as_text(self.json))
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [name for name in KINDS if getattr(self, name) is not None]
        if not given:
            raise ParamsError(f"structured_outputs asks for nothing; give {_any_of(KINDS)}.")
        if len(given) > 1:
            says = " and ".join(given)
            raise ParamsError(f"structured_outputs asks for {says}; give one of them.")
        self._check_texts()

    def _check_texts(self) -> None:
        if self.choice is not None:
            if isinstance(self.choice, str) or not self.choice:
                raise ParamsError(
                    f"structured_outputs.choice must be a list of texts, got {self.choice!r:.60}."
                )
            object.__setattr__(self, "choice", tuple(self.choice))
        texts = (self.json, self.regex, self.grammar, self.whitespace_pattern, *(self.choice or ()))
        for text in texts:
            if text is not None and not isinstance(text, str):
                raise ParamsError(
                    f"structured_outputs.{self.kind} must be made of text, got {text!r:.60}."
                )
        length = sum(len(text) for text in texts if isinstance(text, str))
        if length > MOST_CHARACTERS:
            raise ParamsError(
                f"structured_outputs.{self.kind} has {length} characters; use {MOST_CHARACTERS} "
                "at most."
            )

    @property
    def kind(self) -> str:
        """Which of the first five it is."""
        return next(name for name in KINDS if getattr(self, name) is not None)


def _as_text(schema: Any) -> str:
    try:
        return json_text.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ParamsError(f"structured_outputs.json is no JSON schema: {error}.") from None


def _any_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
