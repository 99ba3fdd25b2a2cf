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
    raise NotImplementedError("lab01 task 5: compile_template")


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

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab01 task 5: ChatTemplate")
