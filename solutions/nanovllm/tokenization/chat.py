"""Chat messages as the text that a model was trained on, by the model's own Jinja template.

A template comes with the model, from strangers, so it runs in a sandbox; messages come from users,
so the special tokens in them stay ordinary text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nanovllm.tokenization.encode import split_special
from nanovllm.tokenization.errors import ChatTemplateError
from nanovllm.tokenization.special import AddedToken
from nanovllm.tokenization.template_tools import (
    Generation,
    check_messages,
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
    """Compile a chat template so that it renders as in transformers.

    The template is a stranger's program: using Python's classes through a value, or changing what
    it is given, ends in jinja2's SecurityError. A line with nothing but a statement or a
    comment leaves no white space behind. Templates may use blocks of `{% generation %}`
    (`Generation`), `break` and `continue`, the filter `tojson` of `template_tools`, and the
    functions `raise_exception` and `strftime_now`. A faulty template raises jinja2.TemplateError.

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


class ChatTemplate:
    """Renders conversations with the template, or templates, of one model.

    ChatTemplate(templates, named_tokens=None): a template or several by name; tokens by name
    render(messages, add_generation_prompt=True, **variables) -> str
    encode(tokenizer, messages, add_generation_prompt=True, **variables) -> list[int]

    What must hold:
    - The template is `tool_use` where there is one and the request has tools (for this choice an
      empty list is none), else `default`. It sees `messages`, `add_generation_prompt`, `tools` and
      `documents` (None if not given), the named tokens (`bos_token`), and the variables, which win.
    - Messages that `check_messages` refuses, a template that is missing or faulty, and any error
      while it renders (it breaks its sandbox, meets a value of a wrong kind, refuses the
      conversation): ChatTemplateError, by `render` and by `encode`.
    - `encode` gives the ids of the rendered text. Special tokens that the template or a named
      token writes become their ids. The same characters in messages or variables, at any depth of
      lists, tuples and dicts and in keys too, are ordinary text, even where the template joins two
      such strings or trims white space away. The template sees a string unchanged, unless the
      string holds a special token, or ends in the beginning of one (or does without the white space
      at its end). What a filter other than `trim` and `tojson` makes of such a string is left open.
      The values of the caller do not change.
    - The text is one text: what stands before the first special token begins it, every part after
      one `continues` it. The template writes the beginning-of-sequence token; none is added.

    >>> ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"}).render(
    ...     [{"role": "user", "content": "Hi"}])
    '<s>Hi'
    """

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ChatTemplate:
        """Read the template, or templates, of a model's folder."""
        folder = Path(folder)
        if not folder.is_dir():
            raise ChatTemplateError(f"there is no folder {folder}; give the folder of a model.")
        return cls(read_templates(folder), read_named_tokens(folder))

    ### BEGIN SOLUTION
    def __init__(
        self, templates: Mapping[str, str] | str, named_tokens: Mapping[str, str] | None = None
    ) -> None:
        self.templates = {"default": templates} if isinstance(templates, str) else dict(templates)
        self.named_tokens = dict(named_tokens or {})
        self.compiled: dict[str, jinja2.Template] = {}

    def render(
        self, messages: Messages, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        check_messages(messages)
        visible = {"tools": None, "documents": None} | self.named_tokens | variables
        visible |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return self._template(visible["tools"]).render(**visible)
        except Exception as error:  # whatever a stranger's template runs into
            raise ChatTemplateError(f"the chat template does not take this: {error}") from error

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Messages,
        add_generation_prompt: bool = True,
        **kw: Any,
    ) -> list[int]:
        specials = [token for token in tokenizer.spec.added_tokens if token.special]
        names = [token.content for token in specials]
        try:
            stands = stand_ins(names, messages, kw, self.templates, self.named_tokens)
            hidden = self._hidden(messages, names, stands)
            more = self._hidden(kw, names, stands)
        except RecursionError:
            raise ChatTemplateError("the messages or variables are nested too deep") from None
        text = self.render(hidden, add_generation_prompt, **more)
        shown = str.maketrans({stand: char for char, stand in stands.items()})
        ids: list[int] = []
        for number, part in enumerate(split_special(text, specials)):
            if isinstance(part, AddedToken):
                ids.append(part.id)
            else:
                ids += tokenizer.encode(part.translate(shown), continues=number > 0)
        return ids

    def _hidden(self, part: Any, tokens: Sequence[str], stands: Mapping[str, str]) -> Any:
        """A copy in which the first character of a token, whole or begun, is its stand-in."""
        if isinstance(part, str):
            return self._veiled(part, tokens, stands)
        if isinstance(part, tuple):
            return tuple(self._hidden(list(part), tokens, stands))
        if isinstance(part, list):
            return [self._hidden(each, tokens, stands) for each in part]
        if not isinstance(part, Mapping):
            return part
        pairs = ([self._hidden(each, tokens, stands) for each in pair] for pair in part.items())
        return dict(pairs)

    def _veiled(self, value: str, tokens: Sequence[str], stands: Mapping[str, str]) -> str:
        for token in tokens:
            value = value.replace(token, stands[token[0]] + token[1:])
        for token in tokens:
            text = value.rstrip()
            for length in range(min(len(token), len(text)), 0, -1):
                if text.endswith(token[:length]):
                    start = len(text) - length
                    value = value[:start] + stands[token[0]] + value[start + 1 :]
                    break
        return value

    def _template(self, tools: object) -> jinja2.Template:
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        if name not in self.templates:
            raise ChatTemplateError(f"there is no template {name!r}, only {[*self.templates]}.")
        if name not in self.compiled:
            self.compiled[name] = compile_template(self.templates[name])
        return self.compiled[name]

    ### END SOLUTION
