"""Reading `tokenizer.json`, the file in which Hugging Face stores a tokenizer.

The file names a normalizer, a pre-tokenizer, a model and added tokens. Byte-level BPE (GPT-2, Llama
3, Qwen, SmolLM and others) is one of several kinds; the others are refused in one sentence.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from nanovllm.tokenization.bpe import BPEModel, Pair
from nanovllm.tokenization.byte_level import to_bytes, to_chars
from nanovllm.tokenization.encode import AddedToken
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.pretokenize import ByteLevel, Split, Step

WANTED = "this engine reads byte-level BPE (GPT-2, Llama 3, Qwen): choose a model of that kind."
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass(frozen=True)
class TokenizerSpec:
    """Everything that decides which ids a text becomes."""

    model: BPEModel
    steps: tuple[Step, ...]
    added_tokens: tuple[AddedToken, ...] = ()
    normal_forms: tuple[str, ...] = ()
    ignore_merges: bool = False
    unk_id: int | None = None
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()

    def normalize(self, text: str) -> str:
        """Bring text into the Unicode normal forms that the tokenizer was trained on."""
        for form in self.normal_forms:
            text = unicodedata.normalize(form, text)
        return text


def read_vocab(entries: Mapping[str, int]) -> dict[bytes, int]:
    """Turn the file's vocabulary, written in the byte-level alphabet, into bytes -> id.

    >>> read_vocab({"a": 0, "Ġthe": 1})
    {b'a': 0, b' the': 1}
    """
    ### BEGIN SOLUTION
    return {to_bytes(token): id for token, id in entries.items()}
    ### END SOLUTION


def read_merges(entries: Sequence[str | Sequence[str]]) -> list[Pair]:
    """Turn the file's merges into pairs of bytes; they come as "a b" or, newer, as ["a", "b"].

    An entry that is not two tokens raises TokenizerError and names the entry.

    >>> read_merges(["Ġ t", ["h", "e"]])
    [(b' ', b't'), (b'h', b'e')]
    """
    ### BEGIN SOLUTION
    merges: list[Pair] = []
    for entry in entries:
        parts = entry.split(" ") if isinstance(entry, str) else entry
        if len(parts) != 2:
            raise TokenizerError(f"the merge {entry!r} is not two tokens; the file is damaged.")
        merges.append((to_bytes(parts[0]), to_bytes(parts[1])))
    return merges
    ### END SOLUTION


def read_spec(data: Mapping[str, Any], where: str = "tokenizer.json") -> TokenizerSpec:
    """Read a parsed `tokenizer.json`; `where` names it in errors."""
    if not isinstance(data, Mapping) or not isinstance(data.get("model"), Mapping):
        raise TokenizerError(f"{where} is not a tokenizer.json: it has no 'model' entry.")
    model = data["model"]
    _check_model(model, where)
    steps = tuple(_steps(data.get("pre_tokenizer"), where))
    if sum(isinstance(step, ByteLevel) for step in steps) != 1:
        raise TokenizerError(
            f"{where} holds BPE over characters, as SentencePiece has it, not over bytes; {WANTED}"
        )
    added = tuple(_added_token(entry) for entry in data.get("added_tokens") or ())
    merges = read_merges(model["merges"])
    made = {left + right for left, right in merges}
    control = {token.content for token in added if token.special}
    entries = {
        token: id
        for token, id in model["vocab"].items()
        if token not in control or _bytes_or_none(token) in made
    }
    foreign = [token for token in entries if _bytes_or_none(token) is None]
    if any(token not in {known.content for known in added} for token in foreign):
        raise TokenizerError(f"{where} holds the token {foreign[0]!r}, not bytes; {WANTED}")
    vocab = read_vocab({token: id for token, id in entries.items() if token not in foreign})
    if lost := [pair for pair in merges if pair[0] + pair[1] not in vocab]:
        raise TokenizerError(f"{where} merges {lost[0]} into a token that is not in its vocab.")
    unk = model.get("unk_token")
    unk_id = None
    if unk:
        unk_id = model["vocab"].get(unk, next((t.id for t in added if t.content == unk), None))
    special = {token.content: token.id for token in added if token.special}
    prefix_ids, suffix_ids = _frame(data.get("post_processor"), special | dict(model["vocab"]))
    return TokenizerSpec(
        model=BPEModel(vocab, merges, special, _pattern(steps)),
        steps=steps,
        added_tokens=added,
        normal_forms=tuple(_normal_forms(data.get("normalizer"), where)),
        ignore_merges=bool(model.get("ignore_merges")),
        unk_id=unk_id,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
    )


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
    model = BPEModel(spec.model.vocab, spec.model.merges, special, spec.model.pattern)
    return TokenizerSpec(**vars(spec) | {"model": model, "added_tokens": spec.added_tokens + extra})


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
    if model.get("byte_fallback"):
        raise TokenizerError(
            f"{where} holds SentencePiece BPE (it falls back to bytes, not starts from them); "
            f"{WANTED}"
        )
    if not model.get("vocab") or "merges" not in model:
        raise TokenizerError(f"{where} has no vocab or no merges; fetch it again.")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"):
        if model.get(option):
            raise TokenizerError(f"{where} sets {option}, which byte-level BPE has no use for.")


def _steps(node: Mapping[str, Any] | None, where: str) -> list[Step]:
    kind = node["type"] if node else None
    if kind is None:
        return []
    if kind == "Sequence":
        return [step for part in node["pretokenizers"] for step in _steps(part, where)]
    if kind == "ByteLevel":
        return [ByteLevel(bool(node.get("add_prefix_space", True)), node.get("use_regex", True))]
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


def _normal_forms(node: Mapping[str, Any] | None, where: str) -> list[str]:
    kind = node["type"] if node else None
    if kind is None:
        return []
    if kind == "Sequence":
        return [form for part in node["normalizers"] for form in _normal_forms(part, where)]
    if kind in _FORMS:
        return [kind]
    raise TokenizerError(
        f"{where} normalizes text by {kind}, and this engine knows only {', '.join(_FORMS)}; "
        + WANTED
    )


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
