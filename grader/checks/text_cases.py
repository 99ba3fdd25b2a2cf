"""What lab 01's checks share: a tokenizer without merges, and a count of the lines that run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import FrameType
from typing import Any


class ByteTokenizer:
    """A tokenizer of given code only: one token a byte, or a character; it counts what is read.

    It has the public interface of the course's `Tokenizer`, so that a check of one task does not
    stand on the code of another.
    """

    def __init__(self, spec: Any) -> None:
        self.spec, self.model = spec, spec.model
        self.special_ids = frozenset(t.id for t in spec.added_tokens if t.special)
        self.stop_ids: frozenset[int] = frozenset()
        self.encoder = self.decoder = self
        self.reads = 0
        self._bytes = {id: token for token, id in self.model.vocab.items()}
        if self.model.byte_fallback:
            single = {f"<0x{b:02X}>".encode(): bytes([b]) for b in range(256)}
            for id, token in self._bytes.items():
                self._bytes[id] = single.get(token, token.replace("▁".encode(), b" "))
        self._bytes |= {t.id: t.content.encode() for t in spec.added_tokens}

    @property
    def vocab_size(self) -> int:
        return max(self._bytes) + 1

    def __len__(self) -> int:
        return self.vocab_size

    def encode(
        self,
        text: str,
        allowed_special: Collection[str] = (),
        add_special_tokens: bool = False,
        continues: bool = False,
    ) -> list[int]:
        found = {t.content: t.id for t in self.spec.added_tokens}
        if allowed_special != "all":
            found = {content: id for content, id in found.items() if content in allowed_special}
        ids: list[int] = []
        rest, start = text, not continues
        while rest:
            places = {content: rest.find(content) for content in found if content in rest}
            first = min(places, key=lambda c: (places[c], -len(c)), default="")
            cut = places[first] if first else len(rest)
            ids += self._plain(rest[:cut], start)
            ids += [found[first]] if first else []
            rest, start = rest[cut + len(first) :], False
        if add_special_tokens:
            ids = [*self.spec.prefix_ids, *ids, *self.spec.suffix_ids]
        return ids

    def _plain(self, text: str, start: bool) -> list[int]:
        vocab, ids = self.model.vocab, []
        for word in self.spec.words(self.spec.normalize(text), start):
            if not self.model.byte_fallback:
                ids += [vocab[bytes([byte])] for byte in word]
                continue
            for piece in (character.encode() for character in word.decode()):
                parts = [piece] if piece in vocab else [f"<0x{b:02X}>".encode() for b in piece]
                ids += [vocab[part] for part in parts]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        self.reads += 1
        return self._bytes.get(int(token_id), b"")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        skipped = self.special_ids if skip_special_tokens else ()
        data = self.decode_bytes(id for id in ids if id not in skipped)
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.spec.strip_space else text


def lines_run(action: Callable[[], Any], package: str = "tokenization") -> int:
    """How many lines of the package's own files run in a call, each turn of a loop anew."""
    count = 0

    def line(frame: FrameType, event: str, arg: object) -> Callable:
        nonlocal count
        count += event == "line"
        return line

    def enter(frame: FrameType, event: str, arg: object) -> Callable | None:
        return line if Path(frame.f_code.co_filename).parent.name == package else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        action()
    finally:
        sys.settrace(before)
    return count
