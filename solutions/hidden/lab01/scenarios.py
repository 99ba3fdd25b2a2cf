"""Hidden scenarios of lab 01: other inputs than the visible checks', and no expected values."""

import json
import tempfile
from pathlib import Path

import torch

from grader.checks.scenarios import scenario

LETTERS = [*"abcdeé ß世🙂.\n'9 "]
SPECIAL = ("<|end|>", "<|end|>x", "<s>")


def _text(rng, length, letters=LETTERS):
    return "".join(rng.choice(letters, length))


def _byte_model():
    from nanovllm.tokenization.bpe import BPEModel

    vocab = {bytes([b]): b for b in range(256)}
    vocab |= {b"ab": 256, b"abc": 257, b"\xc3\xa9": 258, b" a": 259, b"bc": 260, b"\xe4\xb8": 261}
    merges = [(b"b", b"c"), (b"a", b"b"), (b"a", b"bc"), (b"\xc3", b"\xa9"), (b" ", b"a")]
    return BPEModel(vocab, merges, {token: 300 + i for i, token in enumerate(SPECIAL)})


@scenario(task=1)
def training_on_random_text(nanovllm, rng):
    from nanovllm.tokenization.bpe import train_bpe

    texts = [_text(rng, 300) + "<|end|>" + _text(rng, 40) for _ in range(4)]
    model = train_bpe(texts, 256 + int(rng.integers(20, 60)), special_tokens=["<|end|>"])
    return {
        "merges": [[left, right] for left, right in model.merges],
        "vocab": sorted((id, token) for token, id in model.vocab.items()),
        "special": sorted(model.special_tokens.items()),
    }


@scenario(task=1)
def counts_after_merges(nanovllm, rng):
    from nanovllm.tokenization.bpe import PairCounts

    words = {_text(rng, 9, [*"xyz"]).encode(): int(rng.integers(1, 7)) for _ in range(30)}
    pairs = PairCounts(words)
    seen = []
    for _ in range(8):
        pair = pairs.best()
        if pair is None:
            break
        pairs.merge(pair)
        seen.append([list(pair), sorted((list(p), n) for p, n in pairs.counts.items())])
    return {"seen": seen, "words": [list(word) for word in pairs.words]}


@scenario(task=2)
def encoding_random_text(nanovllm, rng):
    from nanovllm.tokenization.tokenizer import Tokenizer

    tokenizer = Tokenizer(_byte_model())
    found = []
    for allowed in ((), "all", ("<s>",)):
        for _ in range(6):
            text = _text(rng, 60, [*LETTERS, *SPECIAL])
            found.append([text, tokenizer.encode(text, allowed_special=allowed)])
    return found


@scenario(task=2)
def merging_random_words(nanovllm, rng):
    from nanovllm.tokenization.encode import merge_word

    tokens, ranks = [b"p", b"q"], {}
    while len(ranks) < 25:
        pair = tuple(tokens[i] for i in rng.integers(0, len(tokens), 2))
        if pair not in ranks:
            ranks[pair] = len(ranks)
            tokens.append(pair[0] + pair[1])
    words = [_text(rng, int(n), [*"pq"]).encode() for n in rng.integers(1, 200, 12)]
    return [merge_word(word, ranks) for word in words]


@scenario(task=3)
def decoding_random_bytes(nanovllm, rng):
    from nanovllm.tokenization.tokenizer import Tokenizer

    tokenizer = Tokenizer(_byte_model())
    found = []
    for _ in range(20):
        ids = rng.choice([*range(262), 300, 301, 302], 15).tolist()
        found.append([
            tokenizer.decode_bytes(ids),
            tokenizer.decode(ids),
            tokenizer.decode(ids, skip_special_tokens=True),
        ])  # fmt: skip
    return found


@scenario(task=3)
def loading_a_file(nanovllm, rng):
    from nanovllm.tokenization.hf_format import save_model
    from nanovllm.tokenization.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "tokenizer.json"
        save_model(_byte_model(), path)
        if rng.integers(2):
            data = json.loads(path.read_text(encoding="utf-8"))
            data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
            path.write_text(json.dumps(data), encoding="utf-8")
        stops = rng.integers(0, 300, 3).tolist()
        entries = {"eos_token_id": stops if rng.integers(2) else stops[0]}
        (path.parent / "generation_config.json").write_text(json.dumps(entries))
        (path.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<s>"}))
        tokenizer = Tokenizer.from_pretrained(path.parent)
    return {
        "vocab": sorted((id, token) for token, id in tokenizer.model.vocab.items()),
        "merges": [list(pair) for pair in tokenizer.model.merges],
        "stops": sorted(tokenizer.stop_ids),
    }


@scenario(task=4)
def streaming_random_tokens(nanovllm, rng):
    from nanovllm.tokenization.detokenizer import StreamingDetokenizer
    from nanovllm.tokenization.tokenizer import Tokenizer

    tokenizer = Tokenizer(_byte_model())
    found = []
    for skip in (True, False):
        stream = StreamingDetokenizer(tokenizer, skip_special_tokens=skip)
        for _ in range(10):
            ids = rng.choice([65, 0xC3, 0xA9, 0xE4, 0xB8, 0x96, 258, 259, 261, 300], 12).tolist()
            found.append([[stream.push(id) for id in ids], stream.flush()])
    return found


@scenario(task=5)
def conversations(nanovllm, rng):
    from nanovllm.tokenization.chat import ChatTemplate
    from nanovllm.tokenization.tokenizer import Tokenizer

    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "  {% if m.role == 'tool' %}\n"
        "[{{ m.content | tojson }}]\n"
        "  {% else %}\n"
        "{{ m.role }}: {{ m.content | trim }}<|end|>\n"
        "  {% endif %}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}<|end|>x{% endif %}"
    )
    chat = ChatTemplate(source, {"bos_token": "<s>"})
    tokenizer = Tokenizer(_byte_model())
    found = []
    for _ in range(6):
        messages = [
            {"role": str(role), "content": _text(rng, 20, [*LETTERS, *SPECIAL, "<|end"])}
            for role in rng.choice(["system", "user", "assistant", "tool"], 3)
        ]
        generation = bool(rng.integers(2))
        found.append([
            chat.render(messages, add_generation_prompt=generation),
            chat.encode(tokenizer, messages, add_generation_prompt=generation),
        ])  # fmt: skip
    return found


@scenario(task=6)
def batches_and_prices(nanovllm, rng):
    from nanovllm.tokenization.tensors import embed, pad_batch, truncate, vocabulary_cost
    from nanovllm.tokenization.tokenizer import Tokenizer

    sequences = [rng.integers(0, 9, n).tolist() for n in rng.integers(1, 12, 5)]
    weight = torch.from_numpy(rng.standard_normal((9, 5))).float()
    found = []
    for side in ("left", "right"):
        batch = pad_batch(sequences, pad_id=3, side=side)
        found.append([
            batch.token_ids, batch.mask, batch.positions, embed(batch.token_ids, weight)
        ])  # fmt: skip
    cost = vocabulary_cost(
        Tokenizer(_byte_model()), [_text(rng, 50)], int(rng.integers(8, 99)), False, torch.float16
    )
    ids = rng.integers(0, 99, 30).tolist()
    cuts = [truncate(ids, limit, keep) for limit, keep in ((9, 2), (30, 0), (1, 1), (0, 0))]
    return {"batches": found, "cuts": cuts, "cost": vars(cost)}
