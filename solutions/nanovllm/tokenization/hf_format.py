"""Reading `tokenizer.json`, the file in which Hugging Face stores a tokenizer.

The file names a normalizer, a pre-tokenizer, a model, a decoder and added tokens. Byte-level BPE
(GPT-2, Llama 3, Qwen) and SentencePiece's BPE (Llama 2, Mistral) are two of several kinds; the
others are refused in one sentence.
"""

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import regex

from nanovllm.tokenization.byte_level import byte_token, to_bytes, to_chars
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.pretokenize import SPACE, ByteLevel, Metaspace, Split, Step, cut
from nanovllm.tokenization.special import AddedToken
from nanovllm.tokenization.vocabulary import BPEModel, Pair

WANTED = (
    "this engine reads byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece's BPE with byte "
    "fallback (Llama 2, Mistral): choose a model of that kind."
)
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_FALLBACK = [byte_token(byte).decode() for byte in range(256)]
_DECODERS = [
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


@dataclass(frozen=True)
class Form:
    """A Unicode normal form as a normalizer: NFC makes one character of e and an accent."""

    name: Literal["NFC", "NFD", "NFKC", "NFKD"]

    def __call__(self, text: str) -> str:
        return unicodedata.normalize(self.name, text)


@dataclass(frozen=True)
class Prepend:
    """Put something before a text that is not empty."""

    before: str

    def __call__(self, text: str) -> str:
        return self.before + text if text else text


@dataclass(frozen=True)
class Replace:
    """Put one string in the place of another."""

    old: str
    new: str

    def __call__(self, text: str) -> str:
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class TokenizerSpec:
    """Everything that decides which ids a text becomes, and which text ids become.

    ignore_merges: a word that is in the vocabulary is taken whole (Llama 3)
    unk_id:        the id of what has no token; None: there is none, and it is left out
    prefix_ids, suffix_ids: what the model expects around a text (beginning of sequence)
    strip_space:   a decoded text loses one space at its beginning, where `▁` was put before it
    """

    model: BPEModel
    steps: tuple[Step, ...]
    added_tokens: tuple[AddedToken, ...] = ()
    normalizers: tuple[Form | Prepend | Replace, ...] = ()
    ignore_merges: bool = False
    unk_id: int | None = None
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    strip_space: bool = False

    def normalize(self, text: str) -> str:
        """Bring text into the form that the tokenizer was trained on.

        >>> spec = TokenizerSpec(BPEModel({}, []), (), normalizers=(Form("NFC"), Prepend("_")))
        >>> spec.normalize("cafe\u0301")
        '_café'
        """
        for normalizer in self.normalizers:
            text = normalizer(text)
        return text

    def words(self, text: str, start: bool = True) -> Iterable[bytes]:
        """Cut normalized text into words; `start`: it is the beginning of the whole text.

        >>> list(plain_spec(BPEModel({}, [])).words("It's 2024"))
        [b'It', b"'s", b' 2024']
        """
        to_word = str.encode if self.model.byte_fallback else to_bytes
        return map(to_word, cut(text, self.steps, start))


def plain_spec(model: BPEModel) -> TokenizerSpec:
    """The spec of a byte-level model that was trained here: its pattern, its special tokens."""
    added = tuple(AddedToken(token, id) for token, id in model.special_tokens.items())
    return TokenizerSpec(model, (Split(model.pattern), ByteLevel(use_regex=False)), added)


def read_bpe(
    vocab: Mapping[str, int], merges: Sequence[str | Sequence[str]], byte_fallback: bool = False
) -> tuple[dict[bytes, int], list[Pair]]:
    """Turn the vocabulary and the merges of a file into bytes.

    In the file of a byte-level tokenizer each character stands for one byte (`to_bytes`); with
    `byte_fallback` a token is written as it is, so it becomes its UTF-8. A merge comes as "a b" or,
    in newer files, as ["a", "b"]. One that has not two parts, or that makes a token which is not in
    the vocabulary, raises TokenizerError.

    >>> read_bpe({"Ġ": 0, "t": 1, "Ġt": 2}, ["Ġ t"])
    ({b' ': 0, b't': 1, b' t': 2}, [(b' ', b't')])
    >>> read_bpe({"▁": 0, "é": 1, "▁é": 2}, [["▁", "é"]], byte_fallback=True)[1]
    [(b'\xe2\x96\x81', b'\xc3\xa9')]
    """
    ### BEGIN SOLUTION
    read = str.encode if byte_fallback else to_bytes
    ids = {read(token): id for token, id in vocab.items()}
    pairs: list[Pair] = []
    for entry in merges:
        parts = entry.split(" ") if isinstance(entry, str) else entry
        if len(parts) != 2:
            raise TokenizerError(f"the merge {entry!r} is not two tokens; the file is damaged.")
        left, right = map(read, parts)
        if left + right not in ids:
            raise TokenizerError(f"the merge {entry!r} makes a token that is not in the vocab.")
        pairs.append((left, right))
    return ids, pairs
    ### END SOLUTION


def read_spec(data: Mapping[str, Any], where: str = "tokenizer.json") -> TokenizerSpec:
    """Read a parsed `tokenizer.json`; `where` names it in errors."""
    if not isinstance(data, Mapping) or not isinstance(data.get("model"), Mapping):
        raise TokenizerError(f"{where} is not a tokenizer.json: it has no 'model' entry.")
    model = data["model"]
    _check_model(model, where)
    fallback = bool(model.get("byte_fallback"))
    steps = tuple(_steps(data.get("pre_tokenizer"), where))
    levels = sum(isinstance(step, ByteLevel) for step in steps)
    spaces = any(isinstance(step, Metaspace) for step in steps)
    if levels != (0 if fallback else 1) or (spaces and not fallback):
        raise TokenizerError(
            f"{where} holds BPE over characters without byte fallback, or mixes two kinds; {WANTED}"
        )
    added = tuple(_added_token(entry) for entry in data.get("added_tokens") or ())
    vocab, merges = read_bpe(_own_tokens(model, added, fallback, where), model["merges"], fallback)
    unk = model.get("unk_token")
    unk_id = None
    if unk:
        unk_id = model["vocab"].get(unk, next((t.id for t in added if t.content == unk), None))
    special = {token.content: token.id for token in added if token.special}
    prefix_ids, suffix_ids = _frame(data.get("post_processor"), special | dict(model["vocab"]))
    return TokenizerSpec(
        model=BPEModel(vocab, merges, special, _pattern(steps), fallback),
        steps=steps,
        added_tokens=added,
        normalizers=tuple(_normalizers(data.get("normalizer"), where, fallback)),
        ignore_merges=bool(model.get("ignore_merges")),
        unk_id=unk_id,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        strip_space=fallback and _strips(data.get("decoder"), model["vocab"], where),
    )


def _own_tokens(
    model: Mapping[str, Any], added: Sequence[AddedToken], fallback: bool, where: str
) -> dict[str, int]:
    """The vocabulary without control tokens, which no merge of text can make."""
    control = {token.content for token in added if token.special}
    if fallback:
        if missing := [token for token in _FALLBACK if token not in model["vocab"]]:
            raise TokenizerError(f"{where} falls back to bytes and has no {missing[0]}; {WANTED}")
        return {token: id for token, id in model["vocab"].items() if token not in control}
    made = {"".join(e.split(" ") if isinstance(e, str) else e) for e in model["merges"]}
    entries = {
        token: id for token, id in model["vocab"].items() if token not in control or token in made
    }
    foreign = [token for token in entries if _bytes_or_none(token) is None]
    if any(token not in {known.content for known in added} for token in foreign):
        raise TokenizerError(f"{where} holds the token {foreign[0]!r}, not bytes; {WANTED}")
    return {token: id for token, id in entries.items() if token not in foreign}


def load_json(path: Path) -> dict[str, Any]:
    """Read a JSON file; one sentence if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TokenizerError(f"there is no {path}; give the folder of a model.") from None
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read as JSON ({error}); fetch it again.") from None


def load_spec(path: Path) -> TokenizerSpec:
    """Read a `tokenizer.json`, and the `tokenizer_config.json` beside it where there is one."""
    spec = read_spec(load_json(path), str(path))
    config = path.with_name("tokenizer_config.json")
    if not config.is_file():
        return spec
    known = {token.id for token in spec.added_tokens}
    listed = load_json(config).get("added_tokens_decoder") or {}
    extra = tuple(
        _added_token(entry | {"id": int(id)})
        for id, entry in listed.items()
        if int(id) not in known
    )
    if not extra:
        return spec
    special = spec.model.special_tokens | {t.content: t.id for t in extra if t.special}
    model = replace(spec.model, special_tokens=special)
    return replace(spec, model=model, added_tokens=spec.added_tokens + extra)


def save_model(model: BPEModel, path: Path) -> None:
    """Write a trained model as a `tokenizer.json` that the tokenizers library reads too."""
    merges = [[to_chars(left), to_chars(right)] for left, right in model.merges]
    added = [
        {"id": id, "content": token, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for token, id in model.special_tokens.items()
    ]
    split = {"type": "Split", "pattern": {"Regex": model.pattern}} | {
        "behavior": "Isolated",
        "invert": False,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, byte_level | {"use_regex": False}],
        },
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {to_chars(token): id for token, id in model.vocab.items()},
            "merges": merges,
        },
    }
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")


def _check_model(model: Mapping[str, Any], where: str) -> None:
    kind = model.get("type", "BPE" if "merges" in model else "unknown")
    if kind != "BPE":
        raise TokenizerError(f"{where} holds a {kind} tokenizer; {WANTED}")
    if not model.get("vocab") or "merges" not in model:
        raise TokenizerError(f"{where} has no vocab or no merges; fetch it again.")
    options = ["dropout", "continuing_subword_prefix", "end_of_word_suffix"]
    for option in options if model.get("byte_fallback") else [*options, "fuse_unk"]:
        if model.get(option):
            raise TokenizerError(f"{where} sets {option}, which this engine's BPE has no use for.")


def _steps(node: Mapping[str, Any] | None, where: str) -> list[Step]:
    if not node:
        return []
    kind = node["type"]
    if kind == "Sequence":
        return [step for part in node["pretokenizers"] for step in _steps(part, where)]
    if kind == "ByteLevel":
        return [ByteLevel(bool(node.get("add_prefix_space", True)), node.get("use_regex", True))]
    if kind == "Metaspace":
        if node.get("replacement", SPACE) != SPACE:
            raise TokenizerError(f"{where} writes a space as {node['replacement']!r}; {WANTED}")
        older = "always" if node.get("add_prefix_space", True) else "never"
        return [Metaspace(node.get("prepend_scheme", older), node.get("split", True))]
    if kind == "Digits":
        return [Split(r"\p{N}" if node.get("individual_digits") else r"\p{N}+")]
    if kind == "Split":
        ((syntax, pattern),) = node["pattern"].items()
        behavior = regex.sub(r"(?<!^)([A-Z])", r"_\1", node["behavior"]).lower()
        pattern = pattern if syntax == "Regex" else regex.escape(pattern)
        try:
            regex.compile(pattern)
        except regex.error as error:
            raise TokenizerError(f"{where} cuts words by a pattern {error}: {pattern!r}.") from None
        return [Split(pattern, behavior, bool(node.get("invert")))]
    raise TokenizerError(f"{where} cuts words by {kind}; {WANTED}")


def _normalizers(
    node: Mapping[str, Any] | None, where: str, fallback: bool
) -> list[Form | Prepend | Replace]:
    if not node:
        return []
    kind = node["type"]
    if kind == "Sequence":
        return [n for part in node["normalizers"] for n in _normalizers(part, where, fallback)]
    if kind in _FORMS:
        return [Form(kind)]
    if kind == "Prepend" and fallback:
        return [Prepend(node["prepend"])]
    if kind == "Replace" and fallback and "String" in node["pattern"]:
        return [Replace(node["pattern"]["String"], node["content"])]
    raise TokenizerError(f"{where} normalizes text by {kind}; {WANTED}")


def _strips(node: Mapping[str, Any] | None, vocab: Iterable[str], where: str) -> bool:
    """Whether the decoder takes one space away at the beginning of a text."""
    steps = node.get("decoders", [node]) if node else []
    if steps in (_DECODERS, [*_DECODERS, _STRIP]):
        return _STRIP in steps
    kinds = [step["type"] for step in steps]
    if {*kinds} - {"Fuse"} != {"Metaspace", "ByteFallback"}:
        raise TokenizerError(f"{where} decodes by {', '.join(kinds) or 'nothing'}; {WANTED}")
    if lost := next((token for token in vocab if SPACE in token[1:]), None):
        # Metaspace leaves out every sign in the first token, not the first sign.
        raise TokenizerError(
            f"{where} decodes by Metaspace, which loses the spaces within {lost!r}; {WANTED}"
        )
    ((space,),) = (_steps(step, where) for step in steps if step["type"] == "Metaspace")
    return isinstance(space, Metaspace) and space.prepend != "never"


def _pattern(steps: Sequence[Step]) -> str:
    patterns = [step.pattern for step in steps if isinstance(step, Split)]
    return patterns[0] if patterns else BPEModel.pattern


def _added_token(entry: Mapping[str, Any]) -> AddedToken:
    flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
    return AddedToken(
        entry["content"], entry["id"], **{flag: bool(entry.get(flag)) for flag in flags}
    )


def _bytes_or_none(token: str) -> bytes | None:
    try:
        return to_bytes(token)
    except TokenizerError:
        return None


def _frame(
    node: Mapping[str, Any] | None, ids: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a post-processor puts before and after a text (beginning of sequence)."""
    if node is None:
        return (), ()
    if node["type"] == "Sequence":
        frames = [_frame(part, ids) for part in node["processors"]]
        before = tuple(id for prefix, _ in reversed(frames) for id in prefix)
        return before, tuple(id for _, suffix in frames for id in suffix)
    if node["type"] != "TemplateProcessing":
        return (), ()
    before, after, seen = [], [], False
    for part in node["single"]:
        if "Sequence" in part:
            seen = True
            continue
        name = part["SpecialToken"]["id"]
        listed = node.get("special_tokens", {}).get(name, {}).get("ids")
        (after if seen else before).extend(listed or [ids[name]])
    return tuple(before), tuple(after)
