"""Chat messages as the text that a model was trained on, by the model's own Jinja template.

A template comes with the model, from strangers, so it runs in a sandbox; messages come from users,
so the special tokens in them stay ordinary text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nanovllm.tokenization.encode import AddedToken, split_special
from nanovllm.tokenization.errors import ChatTemplateError
from nanovllm.tokenization.template_tools import (
    Generation,
    raise_exception,
    read_named_tokens,
    read_templates,
    stand_ins,
    strftime_now,
    tojson,
)
from nanovllm.tokenization.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template as transformers does.

    `ImmutableSandboxedEnvironment`, for the template is a stranger's program; `trim_blocks` and
    `lstrip_blocks`, for templates are written with one statement a line and these lines must leave
    no white space; the extensions `Generation` and `loopcontrols`; the filter `tojson`; the
    functions `raise_exception` and `strftime_now`. Raises jinja2.TemplateError.

    >>> compile_template("{% for m in messages %}\\n  {{ m }}\\n{% endfor %}").render(messages=[1])
    '  1\\n'
    """
    ### BEGIN SOLUTION
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment.from_string(source)
    ### END SOLUTION


def hide_special(value: Any, tokens: Collection[str], stands: Mapping[str, str]) -> Any:
    """Return strings, lists and dicts in which no special token is left, whole or begun.

    Where a token occurs, or where a string ends (white space aside) in the beginning of one, its
    first character c is replaced by `stands[c]`; nothing else changes. Lists, tuples and dicts
    (keys too) are copied with what they hold; other values are returned as they are.

    >>> hide_special(["a<|end|> 1<2", {"x": "b<|e "}], ["<|end|>"], {"<": "~"})
    ['a~|end|> 1<2', {'x': 'b~|e '}]
    """
    ### BEGIN SOLUTION
    if isinstance(value, Mapping):
        return {
            hide_special(key, tokens, stands): hide_special(entry, tokens, stands)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [hide_special(entry, tokens, stands) for entry in value]
    if not isinstance(value, str):
        return value
    for token in tokens:
        value = value.replace(token, stands[token[0]] + token[1:])
    text = value.rstrip()
    for token in tokens:
        for length in range(min(len(token), len(text)), 0, -1):
            if text.endswith(token[:length]):
                start = len(text) - length
                value = value[:start] + stands[token[0]] + value[start + 1 :]
                text = value.rstrip()
    return value
    ### END SOLUTION


class ChatTemplate:
    """Renders conversations with the template of one model."""

    def __init__(
        self, templates: Mapping[str, str] | str, named_tokens: Mapping[str, str] | None = None
    ) -> None:
        """Take one template or several by name, and the tokens that they may name (bos_token)."""
        self.templates = {"default": templates} if isinstance(templates, str) else dict(templates)
        self.named_tokens = dict(named_tokens or {})
        self._compiled: dict[str, jinja2.Template] = {}

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ChatTemplate:
        """Read the template, or templates, of a model's folder."""
        folder = Path(folder)
        if not folder.is_dir():
            raise ChatTemplateError(f"there is no folder {folder}; give the folder of a model.")
        return cls(read_templates(folder), read_named_tokens(folder))

    def template(self, tools: object = None) -> jinja2.Template:
        """Return a request's template, compiled: `tool_use` if it has tools, else `default`."""
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        if name not in self.templates:
            raise ChatTemplateError(
                f"the model has templates {', '.join(sorted(self.templates))} and no 'default'; "
                "make a ChatTemplate of the one you want."
            )
        if name not in self._compiled:
            self._compiled[name] = compile_template(self.templates[name])
        return self._compiled[name]

    def render(
        self, messages: Messages, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Return the conversation as text, special tokens of the template included.

        The template sees `messages`, `add_generation_prompt` (end with the opening of the
        assistant's turn, so that the model answers), `tools` and `documents` (None if not given),
        the named tokens, and `variables`, which win. Messages that are no list of dicts with a
        role, a faulty template, and one that refuses the conversation raise ChatTemplateError.

        >>> ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"}).render(
        ...     [{"role": "user", "content": "Hi"}])
        '<s>Hi'
        """
        _check(messages)
        ### BEGIN SOLUTION
        visible = {"tools": None, "documents": None} | self.named_tokens | variables
        try:
            return self.template(visible["tools"]).render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **visible
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            if isinstance(error, ChatTemplateError):
                raise
            raise ChatTemplateError(
                f"the chat template does not take these messages: {error}"
            ) from error
        ### END SOLUTION

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Messages,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Return the ids of the rendered conversation.

        Special tokens that the template writes become their ids; the same characters in messages
        or variables are ordinary text. The template writes the beginning-of-sequence token if the
        model has one, so none is added here.
        """
        specials = [token for token in tokenizer.spec.added_tokens if token.special]
        names = [token.content for token in specials]
        stands = stand_ins(names, messages, variables)
        ### BEGIN SOLUTION
        text = self.render(
            hide_special(messages, names, stands),
            add_generation_prompt,
            **hide_special(variables, names, stands),
        )
        shown = str.maketrans({stand: char for char, stand in stands.items()})
        ids: list[int] = []
        for part in split_special(text, specials):
            if isinstance(part, AddedToken):
                ids.append(part.id)
            else:
                ids += tokenizer.encode(part.translate(shown))
        return ids
        ### END SOLUTION


def _check(messages: Messages) -> None:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ChatTemplateError(
            "messages must be a list with at least one {'role': ..., 'content': ...}, "
            f"not {messages!r:.60}."
        )
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(f"each message is a dict with a 'role', not {message!r:.60}.")
