"""What chat templates expect to find, where a folder keeps them, and stand-ins. Given code."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from nanovllm.tokenization.errors import ChatTemplateError
from nanovllm.tokenization.hf_format import load_json


class Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what to train on; here only its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` of chat templates; Jinja's own would escape `<` and `'` for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)  # fmt: skip


def raise_exception(message: str) -> None:
    """How a template refuses a conversation, such as two user messages in a row."""
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(form: str) -> str:
    """Today's date, which some templates write into the system message."""
    return datetime.now().strftime(form)


def read_templates(folder: Path) -> dict[str, str]:
    """Find a folder's templates by name; the usual single one is called `default`.

    `chat_template.jinja` and `additional_chat_templates/*.jinja` win over `chat_template` of
    `tokenizer_config.json`, which is one template or a list of named ones.
    """
    found: dict[str, str] = {}
    file = folder / "chat_template.jinja"
    if file.is_file():
        found["default"] = file.read_text(encoding="utf-8")
    for extra in sorted(folder.glob("additional_chat_templates/*.jinja")):
        found[extra.stem] = extra.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    listed = load_json(config).get("chat_template") if not found and config.is_file() else None
    if isinstance(listed, str):
        found["default"] = listed
    elif listed:
        found = {entry["name"]: entry["template"] for entry in listed}
    if not found:
        raise ChatTemplateError(
            f"{folder} has no chat template: it is a base model, which continues text; "
            "give it a plain prompt, or choose an instruct model."
        )
    return found


def read_named_tokens(folder: Path) -> dict[str, str]:
    """Read `bos_token`, `eos_token` and the like, which templates may mention by these names."""
    config = folder / "tokenizer_config.json"
    entries = load_json(config) if config.is_file() else {}
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
    contents = {
        name: entry["content"] if isinstance(entry := entries[name], Mapping) else entry
        for name in names
        if entries.get(name)
    }
    return contents | {
        name: token for name, token in (entries.get("model_specific_special_tokens") or {}).items()
        if isinstance(token, str)
    }  # fmt: skip


def stand_ins(tokens: Iterable[str], *values: Any) -> dict[str, str]:
    """Choose, for each first character of the tokens, a character that occurs nowhere in values.

    Give it all that the text is made of: messages, variables, templates, named tokens. Unicode sets
    66 code points aside that are never characters of a text, and 137,468 for private use. Raises
    ChatTemplateError where too few of them are left: nobody would be protected.

    >>> stand_ins(["<|a|>", "</s>"], ["hello"])
    {'<': '\\ufdd0'}
    """
    used = {*"".join(_strings(values))}
    never = [*range(0xFDD0, 0xFDF0)] + [p << 16 | e for p in range(17) for e in (0xFFFE, 0xFFFF)]
    private = chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
    first = sorted({token[0] for token in tokens})
    free = islice(
        (chr(code) for code in chain(never, private) if chr(code) not in used), len(first)
    )
    found = dict(zip(first, free, strict=False))
    if len(found) < len(first):
        raise ChatTemplateError(
            "The conversation has nearly all characters of Unicode's private use, so control "
            "tokens in it cannot be told from text; leave them out."
        )
    return found


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _strings(key)
            yield from _strings(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _strings(entry)


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse messages that are no list of dicts, each with a role."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ChatTemplateError(
            "messages must be a list with at least one {'role': ..., 'content': ...}, "
            f"not {messages!r:.60}."
        )
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(f"each message is a dict with a 'role', not {message!r:.60}.")
