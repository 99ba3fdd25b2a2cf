"""A byte-level BPE tokenizer: text to ids and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

from nanovllm.tokenization.bpe import BPEModel
from nanovllm.tokenization.byte_level import to_bytes, well_formed
from nanovllm.tokenization.encode import AddedToken, merge_word, split_special
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.hf_format import WANTED, TokenizerSpec, load_json, load_spec
from nanovllm.tokenization.pretokenize import ByteLevel, Split, cut

CACHED_WORDS = 1 << 16
LONGEST_CACHED = 64

Allowed = Collection[str] | Literal["all"]


class Tokenizer:
    """Encodes and decodes with one vocabulary; safe to share, as nothing but its cache changes."""

    def __init__(self, model: BPEModel, spec: TokenizerSpec | None = None) -> None:
        self.model = model
        self.spec = spec or TokenizerSpec(
            model,
            steps=(Split(model.pattern), ByteLevel(use_regex=False)),
            added_tokens=tuple(AddedToken(t, id) for t, id in model.special_tokens.items()),
        )
        self.ranks = {}
        for rank, pair in enumerate(model.merges):
            self.ranks.setdefault(pair, rank)
        self.special_ids = frozenset(t.id for t in self.spec.added_tokens if t.special)
        self.stop_ids: frozenset[int] = frozenset()
        self._bytes = {id: token for token, id in model.vocab.items()}
        self._bytes |= {token.id: token.content.encode() for token in self.spec.added_tokens}
        self._cache: dict[str, list[int]] = {}
        self._merges_of_bytes = model.vocab.keys() >= {bytes([b]) for b in range(256)}

    @classmethod
    def from_file(cls, path: str | Path) -> Tokenizer:
        """Load a `tokenizer.json`."""
        spec = load_spec(Path(path))
        return cls(spec.model, spec)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Tokenizer:
        """Load the tokenizer of a model's folder, and the ids at which that model stops."""
        folder = Path(folder)
        if not folder.is_dir():
            raise TokenizerError(f"there is no folder {folder}; give the folder of a model.")
        if not (folder / "tokenizer.json").is_file() and (folder / "tokenizer.model").is_file():
            raise TokenizerError(
                f"{folder} holds a SentencePiece tokenizer (tokenizer.model), no tokenizer.json; "
                + WANTED
            )
        tokenizer = cls.from_file(folder / "tokenizer.json")
        tokenizer.stop_ids = read_stop_ids(folder, tokenizer)
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """One more than the largest id: the rows that an embedding needs at least."""
        return max(self._bytes) + 1

    def __len__(self) -> int:
        return self.vocab_size

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; of an id that no token has, none.

        Models round their vocabulary up (Qwen3 has 267 rows more than tokens), so such an id can
        come out of a sampler. A negative id raises TokenizerError.
        """
        if token_id < 0:
            raise TokenizerError(f"{token_id} is no token id; ids count from 0.")
        return self._bytes.get(int(token_id), b"")

    def encode_word(self, word: bytes) -> list[int]:
        """Return the ids of one word.

        A tokenizer with `spec.ignore_merges` (Llama 3) takes a word that is in the vocabulary
        whole, without merging. A byte that the vocabulary lacks becomes `spec.unk_id`, and is
        dropped before merging if that is None.
        """
        raise NotImplementedError("lab01 task 2: Tokenizer.encode_word")

    def encode(
        self,
        text: str,
        allowed_special: Allowed = frozenset(),
        add_special_tokens: bool = False,
    ) -> list[int]:
        """Return the ids of a text.

        Special tokens written in the text are ordinary text unless `allowed_special` names them,
        or is "all"; a name that is no special token of this tokenizer raises TokenizerError. With
        `add_special_tokens` the ids come with what the model expects around a text (`prefix_ids`
        and `suffix_ids` of the spec: beginning of sequence), and do not without. A chat template
        writes these itself, so it is never used with one.

        >>> from nanovllm.tokenization.bpe import train_bpe
        >>> Tokenizer(train_bpe(["low low"], vocab_size=258)).encode("lower")
        [257, 101, 114]
        """
        if not isinstance(text, str):
            raise TokenizerError(f"encode takes a str, not {type(text).__name__}.")
        raise NotImplementedError("lab01 task 2: Tokenizer.encode")

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of normalized text that holds no added tokens; words are remembered."""
        ids: list[int] = []
        cache = self._cache
        for word in cut(text, self.spec.steps):
            found = cache.get(word)
            if found is None:
                found = self.encode_word(to_bytes(word))
                if len(word) <= LONGEST_CACHED:
                    if len(cache) >= CACHED_WORDS:
                        cache.clear()
                    cache[word] = found
            ids += found
        return ids

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that ids stand for, which may end, or begin, inside a character."""
        raise NotImplementedError("lab01 task 3: Tokenizer.decode_bytes")

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD.

        With `skip_special_tokens` control tokens (`special_ids`) leave no trace.

        >>> from nanovllm.tokenization.bpe import train_bpe
        >>> Tokenizer(train_bpe([], vocab_size=256)).decode([0xC3, 0xA9, 0xC3])
        'é\ufffd'
        """
        raise NotImplementedError("lab01 task 3: Tokenizer.decode")

    def _matched(self, allowed_special: Allowed) -> list[AddedToken]:
        """The added tokens to look for: ordinary ones always, special ones where allowed."""
        if allowed_special == "all":
            return list(self.spec.added_tokens)
        allowed = frozenset(
            [allowed_special] if isinstance(allowed_special, str) else allowed_special
        )
        known = {token.content for token in self.spec.added_tokens if token.special}
        if unknown := allowed - known:
            raise TokenizerError(
                f"allowed_special names {sorted(unknown)[0]!r}, which is no special token here; "
                f"there are {', '.join(sorted(known)) or 'none'}."
            )
        return [t for t in self.spec.added_tokens if not t.special or t.content in allowed]


def read_stop_ids(folder: Path, tokenizer: Tokenizer) -> frozenset[int]:
    """Return every id at which the model of a folder stops.

    `eos_token_id` of `generation_config.json` if that has one, else of `config.json`, is one id or
    a list; `eos_token` of `tokenizer_config.json` (a string, or an entry with `content`) adds its
    own id. All three files may be missing.
    """
    raise NotImplementedError("lab01 task 3: read_stop_ids")
