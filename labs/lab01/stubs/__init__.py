"""Lab 01, tokenization: text to token ids and back."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanovllm.tokenization.bpe import train_bpe
    from nanovllm.tokenization.chat import ChatTemplate
    from nanovllm.tokenization.detokenizer import StreamingDetokenizer
    from nanovllm.tokenization.errors import ChatTemplateError, TokenizerError
    from nanovllm.tokenization.tokenizer import Tokenizer
    from nanovllm.tokenization.vocabulary import BPEModel

_HOMES = {
    "BPEModel": "vocabulary",
    "ChatTemplate": "chat",
    "ChatTemplateError": "errors",
    "StreamingDetokenizer": "detokenizer",
    "Tokenizer": "tokenizer",
    "TokenizerError": "errors",
    "train_bpe": "bpe",
}
__all__ = [
    "BPEModel",
    "ChatTemplate",
    "ChatTemplateError",
    "StreamingDetokenizer",
    "Tokenizer",
    "TokenizerError",
    "train_bpe",
]


def __getattr__(name: str) -> Any:
    """Import a name from its file when it is asked for: a file may not be written yet."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
