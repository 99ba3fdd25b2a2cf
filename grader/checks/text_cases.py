"""What lab 01's checks share: random cases, a tokenizer without merges, a count of lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any


def many_cases(seed: int, examples: int, *cases: Any) -> Callable[[Callable], Callable]:
    """Run a function on random arguments by hypothesis; the shortest that fails is shown."""
    from hypothesis import Phase, given, settings
    from hypothesis import seed as seeded

    phases = (Phase.generate, Phase.shrink)
    limits = settings(database=None, deadline=None, max_examples=examples, phases=phases)
    return lambda function: seeded(seed)(limits(given(*cases)(function)))


def random_ranks(rng: Any, letters: Iterable[bytes], merges: int) -> dict[tuple, int]:
    """Ranks of random merges in which later merges build on earlier tokens."""
    tokens, ranks = list(letters), {}
    while len(ranks) < merges:
        pair = tuple(tokens[i] for i in rng.integers(0, len(tokens), 2))
        if pair not in ranks:
            ranks[pair] = len(ranks)
            tokens.append(pair[0] + pair[1])
    return ranks


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
        allowed: Any = (),
        framed: bool = False,
        continues: Any = False,
        **more: Any,
    ) -> list[int]:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        allowed = more.get("allowed_special", allowed)
        known = [t for t in self.spec.added_tokens if allowed == "all" or t.content in allowed]
        found, place = [], 0
        while place < len(text):
            here = [t for t in known if text.startswith(t.content, place)]
            if here:
                longest = max(here, key=lambda t: len(t.content))
                found.append(longest.id)
                place += len(longest.content)
                continue
            places = [text.find(t.content, place) for t in known]
            end = min([at for at in places if at > 0], default=len(text))
            found += self._plain(text[place:end], not (place or continues))
            place = end
        frame = more.get("add_special_tokens", framed)
        return [*self.spec.prefix_ids, *found, *self.spec.suffix_ids] if frame else found

    def _plain(self, text: str, start: bool) -> list[int]:
        vocab, found = self.model.vocab, []
        for word in self.spec.words(self.spec.normalize(text), start):
            whole = self.model.byte_fallback
            for unit in map(str.encode, word.decode()) if whole else [b"%c" % b for b in word]:
                parts = [unit] if unit in vocab else [b"<0x%02X>" % b for b in unit]
                found += [vocab[part] for part in parts]
        return found

    def token_bytes(self, one: int) -> bytes:
        self.reads += 1
        return self._bytes.get(int(one), b"")

    def decode_bytes(self, several: Iterable[int]) -> bytes:
        return bytes(byte for one in several for byte in self.token_bytes(one))

    def decode(self, several: Iterable[int], skip_special_tokens: bool = False) -> str:
        shown = [i for i in several if not (skip_special_tokens and i in self.special_ids)]
        whole = str(self.decode_bytes(shown), "utf-8", "replace")
        return whole[1:] if self.spec.strip_space and whole[:1] == " " else whole


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
