"""From structured outputs to a Grammar over one model's tokens, by llguidance (given)."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nanovllm.generation.errors import RequestError
from nanovllm.generation.grammar import Grammar, next_tokens, reason
from nanovllm.generation.structured import StructuredOutputsParams
from nanovllm.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

KEPT = 16  # compiled grammars that wait for the next request
LONGEST_FORCED = 64  # characters that are encoded at once, where the grammar leaves no choice
LIMITS = {"max_items_in_row": 10_000, "max_lexer_states": 50_000, "verbose_errors": False}
_MADE: weakref.WeakKeyDictionary[Tokenizer, dict[Any, Grammars]] = weakref.WeakKeyDictionary()
_MAKING = threading.Lock()


def compile_grammar(
    wanted: StructuredOutputsParams, tokenizer: Tokenizer | None, size: int, ends: Sequence[int]
) -> Grammar:
    """The grammar, before the first token; takes up to a second, and lets other threads run.

    size: of the model's logits, which may have more columns than there are tokens; ends: the tokens
    that end its texts. Raises RequestError.
    """
    if tokenizer is None or not ends:
        lacks = "a tokenizer" if tokenizer is None else "a model with a token that ends a text"
        raise RequestError(f"structured_outputs needs {lacks}.")
    with _MAKING:
        made = _MADE.setdefault(tokenizer, {})
        key = size, tuple(ends)
        if key not in made:
            made[key] = Grammars(tokenizer, size, ends)
    return made[key].compile(wanted)


class Grammars:
    """The tokens of a model as llguidance wants them, and what was compiled for them lately."""

    def __init__(self, tokenizer: Tokenizer, size: int, ends: Sequence[int]) -> None:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            raise RequestError(
                "structured_outputs needs the package llguidance: pip install llguidance."
            ) from None
        self._size, self._ends = size, list(ends)
        wrapped: Any = TokenizerWrapper(_Tokens(tokenizer, size, ends))
        self._tokens: LLTokenizer = LLTokenizer(wrapped, n_vocab=size, eos_token=self._ends)
        self.compile = lru_cache(KEPT)(self._compile)

    def _compile(self, wanted: StructuredOutputsParams) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        try:
            source = _source(wanted)
        except ValueError as error:
            raise _refusal(wanted, str(error)) from None
        matcher = LLMatcher(self._tokens, source, log_level=0, limits=LLParserLimits(**LIMITS))
        begun = matcher.deep_copy()
        first = next_tokens(begun, self._size)
        error = begun.get_error()
        if error or not first.any():
            nothing = not error or error.startswith("NoExtension")
            raise _refusal(wanted, "no text is of that kind" if nothing else error)
        return Grammar(matcher, self._ends, first)


def _refusal(wanted: StructuredOutputsParams, error: str) -> RequestError:
    return RequestError(f"structured_outputs.{wanted.kind} cannot be followed: {reason(error)}.")


def _source(wanted: StructuredOutputsParams) -> str:
    """In llguidance's own form. Raises ValueError."""
    from llguidance import LLMatcher, grammar_from

    if wanted.kind in ("json", "json_object"):
        options: Any = {"whitespace_flexible": False} if wanted.disable_any_whitespace else {}
        if wanted.whitespace_pattern is not None:
            options["whitespace_pattern"] = wanted.whitespace_pattern
        schema: Any = wanted.json if wanted.kind == "json" else '{"type": "object"}'
        return LLMatcher.grammar_from_json_schema(schema, defaults=options or None)
    given = getattr(wanted, wanted.kind)
    kind: Any = wanted.kind  # "regex", "choice", "grammar": llguidance's names, too
    return grammar_from(kind, json.dumps(given) if kind == "choice" else given)


class _Tokens:
    """What llguidance's TokenizerWrapper takes; the tokenizer may go while it is here."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, ends: Sequence[int]) -> None:
        self.eos_token_id = ends[0]
        self.tokens = [tokenizer.token_bytes(i) for i in range(size)]
        self.special_token_ids = sorted({*tokenizer.special_ids, *ends})
        self._tokenizer = weakref.proxy(tokenizer)
        self._id_of = {token: i for i, token in enumerate(self.tokens) if token}
        self._longest = max(map(len, self.tokens))
        self._encode_once = lru_cache(4096)(self._encode)

    def __call__(self, text: str) -> list[int]:
        """The ids of (the beginning of) a text that must follow."""
        if not isinstance(text, str):
            raise TypeError(f"A text is wanted, got {type(text).__name__}.")
        return self._encode_once(text[:LONGEST_FORCED])

    def _encode(self, text: str) -> list[int]:
        """The tokenizer's own ids, where they spell the text (some put a space before it)."""
        wanted, ids = text.encode(), self._tokenizer.encode(text)
        if b"".join(self.tokens[i] for i in ids) == wanted:
            return ids
        ids = []
        while wanted:
            lengths = range(min(self._longest, len(wanted)), 0, -1)
            length = next((n for n in lengths if wanted[:n] in self._id_of), 0)
            if not length:  # llguidance goes on with single bytes
                break
            ids.append(self._id_of[wanted[:length]])
            wanted = wanted[length:]
        return ids
