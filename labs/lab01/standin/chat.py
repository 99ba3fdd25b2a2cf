"""Chat templates as transformers renders them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerFast

from nanovllm.tokenization.errors import ChatTemplateError
from nanovllm.tokenization.tokenizer import Tokenizer


class ChatTemplate:
    """One template of one model."""

    def __init__(self, theirs: PreTrainedTokenizerFast) -> None:
        self.theirs = theirs

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ChatTemplate:
        """Read the template of a model's folder."""
        return cls(PreTrainedTokenizerFast.from_pretrained(str(folder)))

    def render(self, messages: Any, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a conversation."""
        try:
            return self.theirs.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, tokenize=False, **variables
            )
        except (ValueError, TypeError, KeyError, jinja2.TemplateError) as error:
            raise ChatTemplateError(f"the template refuses the conversation: {error}") from None

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Any,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The ids of the rendered text."""
        return tokenizer.encode(self.render(messages, add_generation_prompt, **variables), "all")
