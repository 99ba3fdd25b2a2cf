"""A tokenizer as the engine uses it: one vocabulary, text to ids and back. Given code but for one.

The work is done by your `Encoder` and your `Decoder`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from nanovllm.tokenization.decode import Decoder
from nanovllm.tokenization.encode import Allowed, Encoder
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.hf_format import TokenizerSpec, load_json, load_spec, plain_spec
from nanovllm.tokenization.vocabulary import BPEModel


class Tokenizer:
    """Encodes and decodes with one vocabulary; requests share it."""

    def __init__(self, model: BPEModel, spec: TokenizerSpec | None = None) -> None:
        """Take a trained model, and what else a file says of it (`read_spec`)."""
        self.model = model
        self.spec = spec or plain_spec(model)
        self.special_ids = frozenset(t.id for t in self.spec.added_tokens if t.special)
        self.stop_ids: frozenset[int] = frozenset()

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.spec)

    @cached_property
    def decoder(self) -> Decoder:
        return Decoder(self.spec)

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
                f"{folder} has a tokenizer.model and no tokenizer.json; with the packages "
                "sentencepiece and protobuf installed, transformers makes one: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
            )
        tokenizer = cls.from_file(folder / "tokenizer.json")
        tokenizer.stop_ids = read_stop_ids(folder, tokenizer)
        return tokenizer

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id: the rows that an embedding needs at least."""
        ids = [*self.model.vocab.values(), *(token.id for token in self.spec.added_tokens)]
        return max(ids) + 1

    def __len__(self) -> int:
        return self.vocab_size

    def encode(
        self, text: str, allowed_special: Allowed = (), *flags: bool, **named: bool
    ) -> list[int]:
        """Return the ids of a text, as `Encoder` says; it has these arguments too.

        A chat template writes special tokens itself: encode its text without add_special_tokens.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"encode takes a str, not {type(text).__name__}.")
        return self.encoder.encode(text, allowed_special, *flags, **named)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, given its id."""
        return self.decoder.token_bytes(token)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids, which may end, or begin, inside a character."""
        return self.decoder.decode_bytes(ids)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids, as `Decoder` says."""
        return self.decoder.decode(ids, skip_special_tokens)


def read_stop_ids(folder: Path, tokenizer: Tokenizer) -> frozenset[int]:
    """Return every id at which the model of a folder stops.

    `eos_token_id`, one id or a list, is that of `generation_config.json`, or of `config.json` where
    it is missing or null there. `eos_token` of `tokenizer_config.json` (a string, or an entry with
    `content`) adds its own id, where a special token has that content. All files may be missing.
    """
    raise NotImplementedError("lab01 task 3: read_stop_ids")
