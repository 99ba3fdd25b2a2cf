"""A trained vocabulary: what training makes, files hold, and encoding uses. Given code."""

from dataclasses import dataclass, field

from nanovllm.tokenization.pretokenize import PATTERN_GPT2

Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class BPEModel:
    """Tokens as bytes with their ids, and the merges, pairs of tokens, in the order learned.

    byte_fallback: False for byte-level BPE, whose words begin as single bytes. True for the BPE of
    SentencePiece (Llama 2, Mistral): words begin as characters, a space is written `▁` (U+2581),
    and a character without a token becomes the byte tokens of its UTF-8 (`byte_token`).
    """

    vocab: dict[bytes, int]
    merges: list[Pair]
    special_tokens: dict[str, int] = field(default_factory=dict)
    pattern: str = PATTERN_GPT2
    byte_fallback: bool = False
