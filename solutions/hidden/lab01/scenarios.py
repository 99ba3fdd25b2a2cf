"""Hidden scenarios of lab 01: other paths than the visible checks', and no expected values."""

import json
import tempfile
from pathlib import Path

import torch

from grader.checks.scenarios import scenario
from grader.checks.text_cases import ByteTokenizer, random_ranks

LETTERS = [*"abcdeé ß世🙂.\n'9 "]
SPECIAL = ("<|end|>", "<|end|>x", "<s>", "<世é>")
BROKEN = [0x20, 0x41, 0xC3, 0xA9, 0xE4, 0xB8, 0x96, 0xF0, 0x9F, 0xED, 0xA0, 0xFF]


def _text(rng, length, letters=LETTERS):
    return "".join(rng.choice(letters, length))


def _or(error, action, *arguments, **named):
    """What the action gives, or the name of the error that the contract has for it."""
    try:
        return action(*arguments, **named)
    except error:
        return error.__name__


def _byte_model():
    from nanovllm.tokenization.vocabulary import BPEModel

    vocab = {bytes([b]): b for b in range(256)}
    vocab |= {b"ab": 256, b"abc": 257, b"\xc3\xa9": 258, b" a": 259, b"bc": 260, b"\xe4\xb8": 261}
    merges = [(b"b", b"c"), (b"a", b"b"), (b"a", b"bc"), (b"\xc3", b"\xa9"), (b" ", b"a")]
    return BPEModel(vocab, merges, {token: 300 + i for i, token in enumerate(SPECIAL)})


def _byte_tokenizer():
    """A tokenizer of given code alone: tasks 4 to 6 must not fail by the code of tasks 2 and 3."""
    from nanovllm.tokenization.hf_format import plain_spec

    return ByteTokenizer(plain_spec(_byte_model()))


def _characters(rng):
    """Merges that build on each other, and the names of all tokens by id."""
    pairs, tokens = [["▁", "▁"]], [*"▁abcé世", "▁▁"]
    while len(pairs) < 12:
        left, right = (tokens[i] for i in rng.integers(0, len(tokens), 2))
        if left + right not in tokens:
            pairs.append([left, right])
            tokens.append(left + right)
    return pairs, ["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(256)), *tokens]


def _character_tokenizer(rng, scheme, strips):
    """As the file of `_sentencepiece` has it, but for merges and tokens that are not special."""
    from nanovllm.tokenization.hf_format import Prepend, Replace, TokenizerSpec
    from nanovllm.tokenization.pretokenize import Metaspace
    from nanovllm.tokenization.special import AddedToken
    from nanovllm.tokenization.vocabulary import BPEModel

    _, names = _characters(rng)
    vocab = {name.encode(): id for id, name in enumerate(names) if id > 1}
    spec = TokenizerSpec(
        BPEModel(vocab, [], {"<unk>": 0, "<s>": 1}, byte_fallback=True),
        (Metaspace(scheme, split=False),) if scheme else (),
        (AddedToken("<unk>", 0), AddedToken("<s>", 1)),
        () if scheme else (Prepend("▁"), Replace(" ", "▁")),
        prefix_ids=(1,),
        strip_space=strips,
    )
    return ByteTokenizer(spec)


def _sentencepiece(rng, folder, scheme, strips):
    """A tokenizer.json with characters, byte fallback and merges that build on each other.

    scheme: how its pre-tokenizer puts a space in front; "" has a normalizer that does.
    """
    pairs, names = _characters(rng)
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strips else []
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Normalizer", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    data = {
        "added_tokens": [
            {"id": i, "content": names[i], "special": True, "normalized": False} for i in (0, 1)
        ]
        + [
            {"id": len(names), "content": "<think>", "special": False, "normalized": False},
            {"id": len(names) + 1, "content": "<▁n>", "special": False, "normalized": True},
        ],
        "normalizer": None if scheme else prepend | {"type": "Sequence"},
        "pre_tokenizer": space if scheme else None,
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


@scenario(task=1)
def training_to_the_end(nanovllm, rng):
    """More room than pairs, special tokens that read like patterns, and what is refused."""
    from nanovllm.tokenization.bpe import train_bpe
    from nanovllm.tokenization.errors import TokenizerError

    special = rng.permutation(["[ab]", "a|b", "a|bab", ".b", "(c"]).tolist()
    texts = [_text(rng, 80, [*"aaabbc .", *special]) for _ in range(3)]
    model = train_bpe(texts, 2000, special)
    found = [[list(pair) for pair in model.merges], sorted(model.special_tokens.items())]
    for arguments in (
        (texts, int(rng.integers(256))),
        (texts, 255 + len(special), special),
        (texts, 300, [*special, special[rng.integers(5)]]),
        (texts, 300, ["", *special]),
        (texts[0], 300, special),
    ):
        found.append(_or(TokenizerError, train_bpe, *arguments) == "TokenizerError")
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

    ranks = random_ranks(rng, [b"a", b"b", b"c"], 10)
    whole = _text(rng, 4, [*"yz"])  # a token that no merge makes
    tokens = [b"a", b"b", b"c", b"y", b"z", *(left + right for left, right in ranks)]
    tokens.append(whole.encode())
    order = rng.permutation(len(tokens))
    vocab = {token: int(id) + 1 for token, id in zip(tokens, order, strict=True)}
    model = BPEModel(vocab, [*ranks, *list(ranks)[::-1]], pattern=r"[^.]+")
    found = []
    for unk in (None, 0, 77):
        for ignore in (False, True):
            encoder = Encoder(replace(plain_spec(model), unk_id=unk, ignore_merges=ignore))
            texts = [_text(rng, 20, [*"aaabbbcccx. ", f".{whole}."]) for _ in range(5)]
            found += [encoder.encode(text) for text in [*texts, f"a.{whole}.{whole}"]]
    return found


@scenario(task=2)
def added_tokens_and_normal_forms(nanovllm, rng):
    from dataclasses import replace

    from nanovllm.tokenization.encode import Encoder, split_special
    from nanovllm.tokenization.errors import TokenizerError
    from nanovllm.tokenization.hf_format import Form, plain_spec
    from nanovllm.tokenization.special import AddedToken

    added = (
        AddedToken("z", 400, special=False, normalized=True),
        AddedToken("A\u030a<x>", 401, special=False),
        AddedToken("e\u0301e", 403, special=False, normalized=True),
        AddedToken("<r>", 402, lstrip=True, rstrip=True),
    )
    spec = plain_spec(_byte_model())
    spec = replace(spec, added_tokens=spec.added_tokens + added)
    parts = ["z", "z\u0301", "A\u030a<x>", "\u00c5<x>", "e\u0301e", "\u00e9e", " <r> ", "ab", " "]
    parts += SPECIAL
    found = []
    for form in ("NFC", "NFKC"):
        encoder = Encoder(replace(spec, normalizers=(Form(form),)))
        for allowed in ((), "all", ["<r>", "<s>"]):
            found.append(encoder.encode("".join(rng.permutation(parts * 2)), allowed))
        for name in ("<typo>", "z", _text(rng, 9)):
            found.append(_or(TokenizerError, encoder.encode, "a", [name, "<s>"]))
    for _ in range(4):
        text = "<s><r>" + "".join(rng.permutation(parts * 2)) + "<r><s>"
        cut = split_special(text, spec.added_tokens)
        found.append([part if isinstance(part, str) else part.id for part in cut])
    # a token begins in what would be another one, were it a word
    words = (AddedToken("abc", 1, single_word=True), AddedToken("c<t>", 2))
    text = _text(rng, 12, ["x", "abc", "c<t>", "abc<t>", " "]) + "xabc<t>abc abc<t>"
    cut = split_special(text, words)
    return [*found, [part if isinstance(part, str) else part.id for part in cut]]


@scenario(task=2)
def merging_random_words(nanovllm, rng):
    from nanovllm.tokenization.encode import merge_word

    letters = [b"p", b"q", "世".encode()]
    ranks = random_ranks(rng, letters, 25)
    words = [
        [letters[i] for i in rng.integers(0, 3, int(length))] for length in rng.integers(1, 200, 12)
    ]
    return [merge_word(word, ranks) for word in [*words, tuple(words[0])]]


@scenario(task=3)
def decoding_random_bytes(nanovllm, rng):
    from dataclasses import replace

    from nanovllm.tokenization.errors import TokenizerError
    from nanovllm.tokenization.hf_format import plain_spec
    from nanovllm.tokenization.special import AddedToken
    from nanovllm.tokenization.tokenizer import Tokenizer

    spec = plain_spec(_byte_model())
    both = AddedToken("<▁é>", 256, special=False)  # an id that the vocabulary has too
    tokenizer = Tokenizer(spec.model, replace(spec, added_tokens=(*spec.added_tokens, both)))
    found = [_or(TokenizerError, tokenizer.token_bytes, -int(rng.integers(1, 300)))]
    for _ in range(20):
        ids = rng.choice([*range(262), *BROKEN * 8, 280, 300, 301, 302, 303, 999], 14).tolist()
        for id in (int(rng.integers(300, 304)), 256, 999):
            ids.insert(int(rng.integers(15)), id)
        found.append([
            tokenizer.decode_bytes(iter(ids)),
            tokenizer.decode(tuple(ids)),
            tokenizer.decode(iter(ids), skip_special_tokens=True),
        ])  # fmt: skip
    return found


@scenario(task=3)
def reading_merges(nanovllm, rng):
    from nanovllm.tokenization.errors import TokenizerError
    from nanovllm.tokenization.hf_format import read_bpe

    found = []
    for fallback in (False, True):
        tokens = [*"abé", "ab", "éa", "abb", "▁" if fallback else "Ġ"]
        ids = rng.permutation(len(tokens)).tolist()
        vocab = dict(zip(tokens, ids, strict=True))
        whole = [["a", "b"], "é a", "ab b"]
        for broken in (None, "a", "a b b", ["a"], ["a", "b", "b"], "b a", ["b", "é"]):
            merges = [] if broken is None else [broken]
            merges = [whole[i] for i in rng.permutation(3)] + merges
            read = _or(TokenizerError, read_bpe, vocab, merges, fallback)
            if not isinstance(read, str):
                read = [sorted(read[0].items()), [list(pair) for pair in read[1]]]
            found.append(read)
    return found


@scenario(task=3)
def loading_a_folder(nanovllm, rng):
    from nanovllm.tokenization.hf_format import save_model
    from nanovllm.tokenization.tokenizer import Tokenizer

    tokens = rng.permutation(4).tolist()
    found = []
    for number, kind in enumerate(rng.permutation(4).tolist()):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save_model(_byte_model(), folder / "tokenizer.json")
            if number % 2:
                data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
                data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
                (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
            stops = rng.choice(range(1, 300), 6, replace=False).tolist()
            ids = [None, stops[:3], stops[0], 0][kind]
            entry = {} if ids is None else {"eos_token_id": ids}
            (folder / "generation_config.json").write_text(json.dumps(entry))
            (folder / "config.json").write_text(json.dumps({"eos_token_id": stops[3:]}))
            token = [None, "<s>", {"content": "<|end|>"}, "<|new|>"][tokens[number]]
            more = {"310": {"content": "<|new|>", "special": True}}
            entries = {"eos_token": token, "added_tokens_decoder": more}
            (folder / "tokenizer_config.json").write_text(json.dumps(entries))
            tokenizer = Tokenizer.from_pretrained(folder)
        text = _text(rng, 30, [*LETTERS, *SPECIAL, "<|new|>"])
        ids = tokenizer.encode(text, "all")
        found += [ids, tokenizer.decode(ids), tokenizer.decode(ids, True)]
        found.append(sorted(tokenizer.stop_ids))
    return found


@scenario(task=3)
def sentencepiece_files(nanovllm, rng):
    from nanovllm.tokenization.tokenizer import Tokenizer

    found = []
    strips = bool(rng.integers(2))
    for scheme in ("always", "first", "never", ""):
        strips = not strips
        with tempfile.TemporaryDirectory() as name:
            _sentencepiece(rng, Path(name), scheme, strips)
            tokenizer = Tokenizer.from_pretrained(name)
        for continues in (False, True):
            for allowed in ("all", (), "all"):
                text = _text(rng, 12, [*"abcé世x  \n▁", "<s>", "<think>", "🙂", "<0x41>"])
                text = f"a<▁n>b{text}b<s>c a"
                ids = tokenizer.encode(text, allowed, bool(rng.integers(2)), continues)
                found.append([ids, tokenizer.decode(ids), tokenizer.decode(ids, True)])
    return found


@scenario(task=4)
def streams_side_by_side(nanovllm, rng):
    from nanovllm.tokenization.detokenizer import StreamingDetokenizer

    streams = [StreamingDetokenizer(_byte_tokenizer(), skip) for skip in (True, False, True)]
    seen = []
    for _ in range(120):
        stream = streams[rng.integers(3)]
        token = int(rng.choice([*BROKEN, 256, 258, 259, 261, 300, 302, 303, 999]))
        seen.append(stream.flush() if rng.integers(12) == 0 else stream.push(token))
    return [seen, [stream.flush() for stream in streams]]


@scenario(task=4)
def streaming_sentencepiece(nanovllm, rng):
    from nanovllm.tokenization.detokenizer import StreamingDetokenizer

    found = []
    for strips in (True, False, True, False):
        tokenizer, skip = _character_tokenizer(rng, "first", strips), bool(rng.integers(2))
        stream = StreamingDetokenizer(tokenizer, skip_special_tokens=skip)
        # 258 and 264 are one and two spaces, 999 is nothing, then half a surrogate and no character
        for first in ([999, 264], [258, 258, 999], [0xEF, 0xA2], [0xF6, 0x92]):
            ids = rng.choice([1, 34, *(b + 2 for b in BROKEN), *range(258, 276)], 8).tolist()
            found.append([[stream.push(id) for id in [*first, *ids]], stream.flush()])
    return found


@scenario(task=5)
def conversations(nanovllm, rng):
    from nanovllm.tokenization.chat import ChatTemplate

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
    tokenizer = _byte_tokenizer()
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
def what_templates_see(nanovllm, rng):
    from nanovllm.tokenization.chat import ChatTemplate
    from nanovllm.tokenization.errors import ChatTemplateError

    def render(templates, more):
        return ChatTemplate(templates).render(user, **more)

    source = "{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ messages[0].content }}"
    user = [{"role": "user", "content": _text(rng, 9)}]
    found = []
    for more in ({}, {"bos_token": _text(rng, 5)}, {"tools": ["x"]}, {"documents": ["x"]}):
        found.append(ChatTemplate(source, {"bos_token": "<s>"}).render(user, **more))
    for end in ("\n", "\n\n", "{% if 1 %}\n{% endif %}\n", "\n "):
        found.append(ChatTemplate(source + end).render(user))
    for templates in ({"other": source}, {"tool_use": source}, {}):
        for more in ({}, {"tools": ["x"]}, {"tools": []}):
            found.append(_or(ChatTemplateError, render, templates, more))
    return found


@scenario(task=5)
def tokens_in_pieces(nanovllm, rng):
    """A special token in keys, or that two strings of a user make; what only looks like one."""
    from nanovllm.tokenization.chat import ChatTemplate

    tokenizer = _byte_tokenizer()
    joined = ChatTemplate("<s>{% for part in messages[0].content %}{{ part | trim }}{% endfor %}")
    shown = ChatTemplate("{{ '<b>' in messages[0].content }}"
                         "{{ messages[0].content.split('</think>')[-1] }}<|end|>")  # fmt: skip
    told = ChatTemplate("{{ documents | tojson }}<s>")
    found = []
    for token in SPECIAL:
        for space in ("", " ", "\n \t"):
            at = int(rng.integers(1, len(token))) if space else len(token) - 1
            parts = [_text(rng, 4) + token[:at] + space, token[at:] + _text(rng, 4)]
            found.append(joined.encode(tokenizer, [{"role": "user", "content": parts}]))
        deep = [{_text(rng, 3) + token: [token, (token,)]}]
        found.append(told.encode(tokenizer, [{"role": "user", "content": ""}], documents=deep))
    for char in range(0xFDD0, 0xFDD3):  # a template may write what others take for stand-ins
        told = ChatTemplate("{{ bos_token }}" + chr(char) + "{{ messages[0].content }}<s>",
                            {"bos_token": chr(char + 1)})  # fmt: skip
        content = _text(rng, 6, [*LETTERS, *SPECIAL]) + SPECIAL[rng.integers(4)]
        found.append(told.encode(tokenizer, [{"role": "user", "content": content}]))
    for text in ("<b>", "", "<"):
        content = f"{_text(rng, 5)}{text}{_text(rng, 5)}</think>{_text(rng, 5)}"
        found.append(shown.encode(tokenizer, [{"role": "user", "content": content}]))
    return found


@scenario(task=5)
def a_conversation_is_one_text(nanovllm, rng):
    from nanovllm.tokenization.chat import ChatTemplate

    sources = ["{{ messages[0].content }}<s>{{ messages[0].content }}"]
    sources.append("<s>{{ messages[0].content }}<unk>{{ messages[0].content }}<s>")
    found = []
    for scheme in ("first", "always", "never", ""):
        tokenizer = _character_tokenizer(rng, scheme, True)
        for source in sources:
            content = "a" + _text(rng, 8, [*"abcé世x  ", "<s>", "<think>"]) + "b"
            messages = [{"role": "user", "content": content}]
            found.append(ChatTemplate(source).encode(tokenizer, messages))
    return found


@scenario(task=5)
def templates_that_fail(nanovllm, rng):
    from nanovllm.tokenization.chat import ChatTemplate
    from nanovllm.tokenization.errors import ChatTemplateError

    tokenizer, user = _byte_tokenizer(), {"role": "user", "content": _text(rng, 5)}
    sources = (
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{% endif %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.pop() }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].role.encode('no such code') }}",
        "{{ '%(name)s' % {} }}",
        "{{ messages[0].content }}",
    )
    found = []
    for number in rng.permutation(len(sources)).tolist():
        for messages in ([user], [{"role": "user"}], [user, "x"], user):
            for action in ("render", "encode"):
                arguments = (messages,) if action == "render" else (tokenizer, messages)

                def ask(source=sources[number], action=action, arguments=arguments):
                    return getattr(ChatTemplate(source), action)(*arguments)

                found.append([number, _or(ChatTemplateError, ask)])
    return found


@scenario(task=6)
def batches_and_prices(nanovllm, rng):
    from nanovllm.tokenization.errors import TokenizerError
    from nanovllm.tokenization.tensors import embed, pad_batch, truncate, vocabulary_cost

    sequences = [rng.integers(0, 9, n).tolist() for n in [0, *rng.integers(1, 12, 5)]]
    weight = torch.from_numpy(rng.standard_normal((9, 5))).float()
    found = []
    for side in ("left", "right"):
        batch = pad_batch(sequences, pad_id=3, side=side)
        found.append([
            batch.token_ids, batch.mask, batch.positions, embed(batch.token_ids, weight)
        ])  # fmt: skip
    width, costs = int(rng.integers(8, 99)), []
    for tied, dtype in ((False, torch.float16), (True, torch.float32), (True, torch.bfloat16)):
        texts = iter([_text(rng, 50), _text(rng, 9, ["\ud83d", *LETTERS]) + "\ude42"])
        tokenizer = _character_tokenizer(rng, "always", True)
        costs.append(vars(vocabulary_cost(tokenizer, texts, width, tied, dtype, 7)))
    ids = rng.integers(0, 99, 30).tolist()
    cuts = [truncate(ids, limit, keep) for limit, keep in ((9, 2), (30, 0), (1, 1), (0, 0), (2, 1))]
    for row in (-1, 9, int(rng.integers(10, 99)), -int(rng.integers(2, 9))):
        cuts.append(_or(TokenizerError, embed, torch.tensor([0, row, 1]), weight))
    for action, *arguments in ((truncate, ids, 3, 4), (truncate, ids, -2), (pad_batch, [[]], 0)):
        cuts.append(_or(TokenizerError, action, *arguments))
    return {"batches": found, "cuts": cuts, "costs": costs}
