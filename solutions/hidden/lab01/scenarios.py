"""Hidden scenarios of lab 01: other paths than the visible checks', and no expected values."""

import json
import tempfile
from pathlib import Path

import torch

from grader.checks.scenarios import scenario

LETTERS = [*"abcdeé ß世🙂.\n'9 "]
SPECIAL = ("<|end|>", "<|end|>x", "<s>")
BROKEN = [0x20, 0x41, 0xC3, 0xA9, 0xE4, 0xB8, 0x96, 0xF0, 0x9F, 0xED, 0xA0, 0xFF]


def _text(rng, length, letters=LETTERS):
    return "".join(rng.choice(letters, length))


def _byte_model():
    from nanovllm.tokenization.vocabulary import BPEModel

    vocab = {bytes([b]): b for b in range(256)}
    vocab |= {b"ab": 256, b"abc": 257, b"\xc3\xa9": 258, b" a": 259, b"bc": 260, b"\xe4\xb8": 261}
    merges = [(b"b", b"c"), (b"a", b"b"), (b"a", b"bc"), (b"\xc3", b"\xa9"), (b" ", b"a")]
    return BPEModel(vocab, merges, {token: 300 + i for i, token in enumerate(SPECIAL)})


def _random_ranks(rng, letters, merges):
    tokens, ranks = list(letters), {}
    while len(ranks) < merges:
        pair = tuple(tokens[i] for i in rng.integers(0, len(tokens), 2))
        if pair not in ranks:
            ranks[pair] = len(ranks)
            tokens.append(pair[0] + pair[1])
    return ranks


def _sentencepiece(rng, folder):
    """A tokenizer.json with characters, byte fallback and merges that build on each other."""
    letters = [*"▁abcé世"]
    pairs, tokens = [], list(letters)
    while len(pairs) < 12:
        left, right = (tokens[i] for i in rng.integers(0, len(tokens), 2))
        if left + right not in tokens:
            pairs.append([left, right])
            tokens.append(left + right)
    names = ["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(256)), *tokens]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if rng.integers(2) else []
    scheme = str(rng.choice(["always", "first", "never"]))
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Normalizer", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    whole = bool(rng.integers(2))
    data = {
        "added_tokens": [
            {"id": i, "content": names[i], "special": True, "normalized": False} for i in (0, 1)
        ]
        + [{"id": len(names), "content": "<think>", "special": False, "normalized": False}],
        "normalizer": prepend | {"type": "Sequence"} if whole else None,
        "pre_tokenizer": None if whole else space,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {"<s>": {"ids": [1]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
            "vocab": {token: id for id, token in enumerate(names)},
            "merges": pairs if rng.integers(2) else [" ".join(pair) for pair in pairs],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")


@scenario(task=1)
def training_on_random_text(nanovllm, rng):
    from nanovllm.tokenization.bpe import train_bpe

    found = []
    for special in (["<|end|>"], ("<|end|>x", "<|end|>", "é"), []):
        marks = [*LETTERS, *"aaab", "<|end|>", "<|end|>x"]
        texts = [_text(rng, 200, marks) for _ in range(3)]
        size = 256 + len(special) + int(rng.integers(0, 60))
        model = train_bpe((text for text in texts), size, special_tokens=special)
        found.append([
            [list(pair) for pair in model.merges],
            sorted((id, token) for token, id in model.vocab.items()),
            sorted(model.special_tokens.items()),
        ])  # fmt: skip
    return found


@scenario(task=1)
def training_with_a_pattern(nanovllm, rng):
    from nanovllm.tokenization.bpe import train_bpe

    found = []
    for pattern in (r"\w+", r"[ab]+|[^ab]", r"(?s).+", r"\d"):
        model = train_bpe(
            [_text(rng, 120, [*"ab12 é\ud83d"]) for _ in range(2)], 290, pattern=pattern
        )
        found.append([pattern, model.pattern, [list(pair) for pair in model.merges]])
    return found


@scenario(task=2)
def encoding_random_text(nanovllm, rng):
    from dataclasses import replace

    from nanovllm.tokenization.hf_format import Form, plain_spec
    from nanovllm.tokenization.special import AddedToken
    from nanovllm.tokenization.tokenizer import Tokenizer

    model = _byte_model()
    extra = (
        AddedToken("abc", 400, special=False, single_word=True),
        AddedToken("<t>", 401, special=False, lstrip=True),
        AddedToken("\u00c5", 402, special=False, normalized=True),
        AddedToken("\ufb01", 403, special=True, normalized=True, rstrip=True),
    )
    spec = plain_spec(model)
    spec = replace(
        spec,
        added_tokens=spec.added_tokens + extra,
        normalizers=(Form(str(rng.choice(["NFC", "NFKC", "NFD"]))),),
        ignore_merges=bool(rng.integers(2)),
        prefix_ids=(7, 8),
        suffix_ids=(9,),
    )
    tokenizer = Tokenizer(model, spec)
    letters = [*LETTERS, *SPECIAL, "abc", "<t>", "\u00c5", "A\u030a", "\ufb01", "fi", "\ud83d"]
    found = []
    for allowed in ((), "all", ("<s>",), iter(["<s>", "<|end|>"])):
        for _ in range(5):
            text, framed = _text(rng, 25, letters), bool(rng.integers(2))
            chosen = list(allowed) if not isinstance(allowed, str) else allowed
            found.append(tokenizer.encode(text, chosen, add_special_tokens=framed))
    return found


@scenario(task=2)
def a_vocabulary_with_holes(nanovllm, rng):
    from dataclasses import replace

    from nanovllm.tokenization.encode import Encoder
    from nanovllm.tokenization.hf_format import plain_spec
    from nanovllm.tokenization.vocabulary import BPEModel

    ranks = _random_ranks(rng, [b"a", b"b", b"c"], 10)
    tokens = [b"a", b"b", b"c", *(left + right for left, right in ranks)]
    order = rng.permutation(len(tokens))
    vocab = {token: int(id) + 1 for token, id in zip(tokens, order, strict=True)}
    model = BPEModel(vocab, [*ranks, *list(ranks)[::-1]], pattern=r"[^.]+")
    found = []
    for unk in (None, 0, 77):
        encoder = Encoder(
            replace(plain_spec(model), unk_id=unk, ignore_merges=bool(rng.integers(2)))
        )
        found += [encoder.encode(_text(rng, 20, [*"aaabbbcccx. "])) for _ in range(8)]
    return found


@scenario(task=2)
def merging_random_words(nanovllm, rng):
    from nanovllm.tokenization.encode import merge_word

    letters = [b"p", b"q", "世".encode()]
    ranks = _random_ranks(rng, letters, 25)
    words = [
        [letters[i] for i in rng.integers(0, 3, int(length))] for length in rng.integers(1, 200, 12)
    ]
    return [merge_word(word, ranks) for word in [*words, tuple(words[0])]]


@scenario(task=3)
def decoding_random_bytes(nanovllm, rng):
    from nanovllm.tokenization.tokenizer import Tokenizer

    tokenizer = Tokenizer(_byte_model())
    found = []
    for _ in range(20):
        ids = rng.choice([*range(262), *BROKEN * 8, 280, 300, 301, 302, 999], 15).tolist()
        found.append([
            tokenizer.decode_bytes(iter(ids)),
            tokenizer.decode(tuple(ids)),
            tokenizer.decode(iter(ids), skip_special_tokens=True),
        ])  # fmt: skip
    return found


@scenario(task=3)
def loading_a_folder(nanovllm, rng):
    from nanovllm.tokenization.hf_format import save_model
    from nanovllm.tokenization.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(_byte_model(), folder / "tokenizer.json")
        if rng.integers(2):
            data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
            data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
            (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
        stops = rng.integers(0, 300, 3).tolist()
        for file in ("generation_config.json", "config.json"):
            named = [{}, {"eos_token_id": stops}, {"eos_token_id": stops[0]}, {"eos_token_id": 0}]
            (folder / file).write_text(json.dumps(named[rng.integers(4)]))
        token = [None, "<s>", {"content": "<|end|>"}, "<|new|>"][rng.integers(4)]
        more = {"310": {"content": "<|new|>", "special": True}}
        entries = {"eos_token": token, "added_tokens_decoder": more}
        (folder / "tokenizer_config.json").write_text(json.dumps(entries))
        tokenizer = Tokenizer.from_pretrained(folder)
    text = _text(rng, 30, [*LETTERS, *SPECIAL, "<|new|>"])
    ids = tokenizer.encode(text, "all")
    return [ids, tokenizer.decode(ids), tokenizer.decode(ids, True), sorted(tokenizer.stop_ids)]


@scenario(task=3)
def sentencepiece_files(nanovllm, rng):
    from nanovllm.tokenization.tokenizer import Tokenizer

    found = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as name:
            _sentencepiece(rng, Path(name))
            tokenizer = Tokenizer.from_pretrained(name)
        for _ in range(6):
            text = _text(rng, 14, [*"abcé世x  \n▁", "<s>", "<think>", "🙂", "<0x41>"])
            allowed = "all" if rng.integers(2) else ()
            ids = tokenizer.encode(text, allowed, bool(rng.integers(2)), bool(rng.integers(2)))
            found.append([ids, tokenizer.decode(ids), tokenizer.decode(ids, True)])
    return found


@scenario(task=4)
def streams_side_by_side(nanovllm, rng):
    from nanovllm.tokenization.detokenizer import StreamingDetokenizer
    from nanovllm.tokenization.tokenizer import Tokenizer

    tokenizer = Tokenizer(_byte_model())
    streams = [StreamingDetokenizer(tokenizer, skip) for skip in (True, False, True)]
    seen = []
    for _ in range(120):
        stream = streams[rng.integers(3)]
        token = int(rng.choice([*BROKEN, 256, 258, 259, 261, 300, 302, 999]))
        seen.append(stream.flush() if rng.integers(12) == 0 else stream.push(token))
    return [seen, [stream.flush() for stream in streams]]


@scenario(task=4)
def streaming_sentencepiece(nanovllm, rng):
    from nanovllm.tokenization.detokenizer import StreamingDetokenizer
    from nanovllm.tokenization.tokenizer import Tokenizer

    found = []
    for _ in range(4):
        with tempfile.TemporaryDirectory() as name:
            _sentencepiece(rng, Path(name))
            tokenizer = Tokenizer.from_pretrained(name)
        stream = StreamingDetokenizer(tokenizer, skip_special_tokens=bool(rng.integers(2)))
        for _ in range(4):
            ids = rng.choice([1, 34, *(b + 2 for b in BROKEN), *range(258, 276)], 8).tolist()
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
        "  {% elif m.role == 'stop' %}{% break %}\n"
        "  {% else %}\n"
        "{{ m.role }}: {{ m.content | trim }}<|end|>\n"
        "  {% endif %}\n"
        "{% endfor %}\n"
        "{% for document in documents or [] %}{{ document.text }}{{ document.more }}{% endfor %}"
        "{% if add_generation_prompt %}<|end|>x{% endif %}"
    )
    chat = ChatTemplate(
        {"default": source, "tool_use": "{{ tools | tojson }}<s>" + source}, {"bos_token": "<s>"}
    )
    tokenizer = Tokenizer(_byte_model())
    letters = [*LETTERS, *SPECIAL, "<|end", "<", "|>"]
    found = []
    for _ in range(6):
        messages = [
            {"role": str(role), "content": _text(rng, 12, letters)}
            for role in rng.choice(["system", "user", "assistant", "tool", "stop"], 3)
        ]
        more = {}
        if rng.integers(2):
            more["tools"] = ({_text(rng, 3, letters): [_text(rng, 6, letters), 1, None]},)
        if rng.integers(2):
            more["documents"] = [
                {"text": _text(rng, 5, letters), "more": _text(rng, 5, letters)} for _ in range(2)
            ]
        generation = bool(rng.integers(2))
        found.append([
            chat.render(tuple(messages), add_generation_prompt=generation, **more),
            chat.encode(tokenizer, messages, add_generation_prompt=generation, **more),
        ])  # fmt: skip
    return found


@scenario(task=5)
def templates_that_fail(nanovllm, rng):
    from nanovllm.tokenization.chat import ChatTemplate
    from nanovllm.tokenization.tokenizer import Tokenizer

    tokenizer, user = Tokenizer(_byte_model()), {"role": "user", "content": _text(rng, 5)}
    sources = (
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{% endif %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.pop() }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content }}",
    )
    found = []
    for number in rng.permutation(len(sources)).tolist():
        for messages in ([user], [{"role": "user"}], [user, "x"], user):
            for action in ("render", "encode"):
                chat = ChatTemplate(sources[number])
                arguments = (messages,) if action == "render" else (tokenizer, messages)
                try:
                    found.append([number, getattr(chat, action)(*arguments)])
                except NotImplementedError:
                    raise
                except Exception as error:
                    found.append([number, type(error).__name__])
    return found


@scenario(task=6)
def batches_and_prices(nanovllm, rng):
    from nanovllm.tokenization.errors import TokenizerError
    from nanovllm.tokenization.tensors import embed, pad_batch, truncate, vocabulary_cost
    from nanovllm.tokenization.tokenizer import Tokenizer

    sequences = [rng.integers(0, 9, n).tolist() for n in [0, *rng.integers(1, 12, 5)]]
    weight = torch.from_numpy(rng.standard_normal((9, 5))).float()
    found = []
    for side in ("left", "right"):
        batch = pad_batch(sequences, pad_id=3, side=side)
        found.append([
            batch.token_ids, batch.mask, batch.positions, embed(batch.token_ids, weight)
        ])  # fmt: skip
    cost = vocabulary_cost(
        Tokenizer(_byte_model()),
        [_text(rng, 50)],
        int(rng.integers(8, 99)),
        False,
        torch.float16,
        7,
    )
    ids = rng.integers(0, 99, 30).tolist()
    cuts = [truncate(ids, limit, keep) for limit, keep in ((9, 2), (30, 0), (1, 1), (0, 0), (2, 1))]
    for action in (
        lambda: embed(torch.tensor([int(rng.choice([-1, 9, 40]))]), weight),
        lambda: truncate(ids, 3, 4),
        lambda: pad_batch([[]], 0),
    ):
        try:
            cuts.append([str(action())])
        except TokenizerError:
            cuts.append(["refused"])
    return {"batches": found, "cuts": cuts, "cost": vars(cost)}
