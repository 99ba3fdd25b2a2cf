"""Lab 01, tokenization: text to token ids and back."""

from nanovllm.tokenization.bpe import BPEModel, train_bpe
from nanovllm.tokenization.chat import ChatTemplate
from nanovllm.tokenization.detokenizer import StreamingDetokenizer
from nanovllm.tokenization.errors import ChatTemplateError, TokenizerError
from nanovllm.tokenization.tokenizer import Tokenizer

__all__ = [
    "BPEModel",
    "ChatTemplate",
    "ChatTemplateError",
    "StreamingDetokenizer",
    "Tokenizer",
    "TokenizerError",
    "train_bpe",
]
