"""A tokenizer of the `tokenizers` library behind the interface of lab 01."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import tokenizers
from transformers import GenerationConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode

from nanovllm.tokenization.errors import TokenizerError

BYTE = {character: byte for byte, character in bytes_to_unicode().items()}


class Tokenizer:
    """One vocabulary of byte-level BPE."""

    def __init__(self, path: Path) -> None:
        self.theirs = tokenizers.Tokenizer.from_file(str(path))
        added = self.theirs.get_added_tokens_decoder()
        self.added = {token: entry.content for token, entry in added.items()}
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.stop_ids: frozenset[int] = frozenset()

    @classmethod
    def from_file(cls, path: str | Path) -> Tokenizer:
        """Load a `tokenizer.json`."""
        return cls(Path(path))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Tokenizer:
        """Load the tokenizer of a model's folder."""
        tokenizer = cls(Path(folder) / "tokenizer.json")
        stops = GenerationConfig.from_pretrained(str(folder)).eos_token_id
        tokenizer.stop_ids = frozenset([stops] if isinstance(stops, int) else stops)
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return self.theirs.get_vocab_size()

    def __len__(self) -> int:
        return self.vocab_size

    def encode(
        self,
        text: str,
        allowed_special: Collection[str] = (),
        add_special_tokens: bool = False,
        continues: bool = False,
    ) -> list[int]:
        """The ids of a text; special tokens all, or none."""
        if not isinstance(text, str):
            raise TokenizerError(f"encode takes a str, not {type(text).__name__}.")
        self.theirs.encode_special_tokens = not allowed_special
        return self.theirs.encode(text, add_special_tokens=add_special_tokens).ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token."""
        if token in self.added:
            return self.added[token].encode()
        if token < 0:
            raise TokenizerError(f"there is no token {token}; ids begin at 0.")
        return bytes(BYTE[character] for character in self.theirs.id_to_token(token) or "")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids."""
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of ids."""
        skipped = self.special_ids if skip_special_tokens else ()
        return self.decode_bytes(i for i in ids if i not in skipped).decode("utf-8", "replace")
