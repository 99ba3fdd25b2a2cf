"""Task 4: text of a token stream."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from grader import expect
from grader.checks.text_cases import ByteTokenizer, many_cases
from nanovllm.tokenization.byte_level import byte_token
from nanovllm.tokenization.detokenizer import StreamingDetokenizer
from nanovllm.tokenization.hf_format import plain_spec
from nanovllm.tokenization.vocabulary import BPEModel

END = 256
# What may still become a character. The last byte has six bits, so each 64th character is enough.
BEGUN = {b""} | {
    chr(code).encode()[:size]
    for code in range(0x80, 0x110000, 64)
    if not 0xD800 <= code < 0xE000
    for size in range(1, len(chr(code).encode()))
}


def _tokenizer(*more):
    """One token a byte, <|end|>, and what else the check needs."""
    vocab = {bytes([b]): b for b in range(256)} | {t: END + 1 + i for i, t in enumerate(more)}
    return ByteTokenizer(plain_spec(BPEModel(vocab, [], {"<|end|>": END})))


def _sentencepiece():
    """Byte tokens 0 to 255, <|end|>, then characters with `▁`; a text loses its first space."""
    vocab = {byte_token(byte): byte for byte in range(256)}
    vocab |= {token.encode(): END + 1 + i for i, token in enumerate(("▁", "▁a", "b", "▁▁", "é"))}
    model = BPEModel(vocab, [], {"<|end|>": END}, byte_fallback=True)
    return ByteTokenizer(replace(plain_spec(model), steps=(), strip_space=True))


def _pieces(stream, ids):
    return [stream.push(id) for id in ids]


def _joined(tokenizer, ids, skip, call):
    """Compare a whole stream with the decoded text."""
    stream = StreamingDetokenizer(tokenizer, skip_special_tokens=skip)
    pieces = _pieces(stream, ids)
    expect(
        pieces,
        list(_shown(tokenizer, ids, skip)),
        call=f"push of {ids}{call}",
        given={"tokens": [tokenizer.token_bytes(id) for id in ids]},
        cause="a piece comes too early or too late: only what may still become a character waits.",
    )
    expect(
        "".join(pieces) + stream.flush(),
        tokenizer.decode(ids, skip_special_tokens=skip),
        call=f"push of {ids}, then flush, joined{call}",
        given={"tokens": [tokenizer.token_bytes(id) for id in ids]},
        cause="text is lost, doubled, or cut within a character.",
    )


def _shown(tokenizer, ids, skip):
    """The oracle of a stream: after each push all bytes but the beginning of a character."""
    data, before = b"", ""
    for id in ids:
        data += b"" if skip and id in tokenizer.special_ids else tokenizer.token_bytes(id)
        held = max(len(tail) for tail in (b"", data[-1:], data[-2:], data[-3:]) if tail in BEGUN)
        text = data[: len(data) - held].decode("utf-8", "replace")
        text = text.removeprefix(" ") if tokenizer.spec.strip_space else text
        yield text[len(before) :]
        before = text


def _whole_characters(rng, length=30):
    return "".join(rng.choice(list("aé世🙂ß \n¿"), length))


@pytest.mark.check(task=4, points=3, title="A character comes whole, and as soon as it is")
def test_whole_characters(rng):
    text = "né 世🙂 " + _whole_characters(rng)
    pieces = [piece for c in text for piece in [*[""] * (len(c.encode()) - 1), c]]
    expect(
        _pieces(StreamingDetokenizer(_tokenizer()), text.encode()),
        pieces,
        call=f"push of each byte of {text!r}",
        cause="half a character was shown, or a whole one held back.",
    )
    tokenizer = _tokenizer(b"x\xe4", b"\xb8\x96y", b" and")
    expect(
        _pieces(StreamingDetokenizer(tokenizer), [END + 1, END + 2, END + 3]),
        ["x", "世y", " and"],
        call=r"push of b'x\xe4', b'\xb8\x96y', b' and'",
        cause="what is complete is shown at once, spaces included; only the rest waits.",
    )


@pytest.mark.check(task=4, points=2, title="Broken bytes hold nothing up")
def test_broken_bytes():
    tokenizer = _tokenizer("\ufffd".encode(), b"ok")
    cases = [
        ([0xE4, 0x41, 0x42], ["", "\ufffdA", "B"]),
        ([0xFF, 0x41], ["\ufffd", "A"]),
        ([0xFF, 0xFE, 0xFD, 0x80, 0x80], ["\ufffd"] * 5),
        ([END + 1, END + 2], ["\ufffd", "ok"]),
        ([0xF0, 0x9F, 0xC3, 0xA9], ["", "", "\ufffd", "é"]),
        ([0xED, 0xA0, 0x41], ["", "\ufffd\ufffd", "A"]),
        ([0xED, 0x9F, 0xBF], ["", "", "\ud7ff"]),
        ([0xE0, 0x80, 0x41], ["", "\ufffd\ufffd", "A"]),
        ([0xF4, 0x90, 0x41], ["", "\ufffd\ufffd", "A"]),
        ([0xF0, 0x8F, 0xE4], ["", "\ufffd\ufffd", ""]),
    ]
    for ids, pieces in cases:
        expect(
            _pieces(StreamingDetokenizer(tokenizer), ids),
            pieces,
            call=f"push of {[tokenizer.token_bytes(id) for id in ids]}",
            cause="bytes that can no longer become a character are shown as U+FFFD at once.",
        )


@pytest.mark.check(task=4, points=2, title="The end shows what was held, and begins anew")
def test_flush():
    stream = StreamingDetokenizer(_tokenizer())
    seen = [*_pieces(stream, b"\xffa\xf0\x9f"), stream.flush(), stream.flush()]
    expect(
        seen,
        ["\ufffd", "a", "", "", "\ufffd", ""],
        call=r"push of b'\xff', b'a', b'\xf0', b'\x9f', then flush twice",
        cause="what is held at the end is shown once, as U+FFFD.",
    )
    expect(
        [*_pieces(stream, "é".encode()), stream.flush()],
        ["", "é", ""],
        call="push of b'\\xc3', b'\\xa9' after that flush",
        cause="after flush the stream begins anew.",
    )


@pytest.mark.check(task=4, points=1, title="Special tokens are skipped, or shown")
def test_special():
    ids = [0xC3, END, 0xA9, END]
    for options, pieces in (
        ({}, ["", "", "é", ""]),
        ({"skip_special_tokens": False}, ["", "\ufffd<|end|>", "\ufffd", "<|end|>"]),
    ):
        expect(
            _pieces(StreamingDetokenizer(_tokenizer(), **options), ids),
            pieces,
            call=f"push of b'\\xc3', <|end|>, b'\\xa9', <|end|>; {options}",
            cause="a skipped token changes nothing, not even what is held.",
        )


@pytest.mark.check(task=4, points=3, title="The first space of a SentencePiece text goes, no other")
def test_leading_space():
    tokenizer = _sentencepiece()
    space, space_a, b, spaces = (END + i for i in (1, 2, 3, 4))
    cases = (
        ([b, spaces, space_a], True, ["b", "  ", " a", ""]),
        ([space_a, b, space_a], True, ["a", "b", " a", ""]),
        ([space, space_a], True, ["", " a", ""]),
        ([spaces, b], True, [" ", "b", ""]),
        ([END, space_a], True, ["", "a", ""]),
        ([END, space_a], False, ["<|end|>", " a", ""]),
        ([999, space_a, b], True, ["", "a", "b", ""]),
        ([*"世".encode(), space_a], True, ["", "", "世", " a", ""]),
        ([0x20, space_a], True, ["", " a", ""]),
    )
    streams = {
        skip: StreamingDetokenizer(tokenizer, skip_special_tokens=skip) for skip in (False, True)
    }
    expect(
        [*_pieces(StreamingDetokenizer(_tokenizer(b" a")), [END + 1, 0x20]), ""],
        [" a", " ", ""],
        call="push of b' a', b' ' where the spec does not strip",
        cause="only `spec.strip_space` takes the first space away.",
    )
    for stream in streams.values():
        stream.push(b), stream.flush()
    for ids, skip, pieces in cases:
        fresh = StreamingDetokenizer(tokenizer, skip_special_tokens=skip)
        expect(
            [[*_pieces(stream, ids), stream.flush()] for stream in (fresh, streams[skip])],
            [pieces, pieces],
            call=f"push of {[tokenizer.token_bytes(id) for id in ids]}, flush: in a new stream "
            "and in one that was used and flushed before",
            given={"skip_special_tokens": skip, "strip_space": True},
            cause="each text loses one space at its very beginning, as `decode` does it; after "
            "flush the next text begins.",
        )


@pytest.mark.check(task=4, points=2, title="A token costs its own bytes, however long the stream")
def test_cost(rng):
    tokenizer = _tokenizer()
    ids = list(_whole_characters(rng, 200).encode())
    _pieces(StreamingDetokenizer(tokenizer), ids)
    expect.that(
        0 < tokenizer.reads <= 6 * len(ids),
        f"{len(ids)} pushes read at most {6 * len(ids)} tokens",
        observed=tokenizer.reads,
        call=f"{len(ids)} pushes, counting the tokens whose bytes are read",
        cause="every push decodes tokens again that were shown before.",
    )


@pytest.mark.check(
    task=4, points=2, title="The pieces of any stream join to the decoded text", stress=True
)
def test_random_streams(seed):
    halves = [" né".encode()[:3], "世界".encode()[1:5], "🙂".encode()[2:], b" a", "\ufffd".encode()]
    kinds = {"": _tokenizer(*halves), ", SentencePiece": _sentencepiece()}
    single = st.sampled_from([*b" A\xc3\xa9\xe4\xb8\x96\xf0\x9f\x8f\xed\xa0\xe0\xff"])
    ids = st.lists(st.one_of(single, st.integers(END, END + 5), st.just(999)), max_size=14)

    @many_cases(seed, 120, ids, st.booleans(), st.sampled_from([*kinds]))
    def same(ids, skip, kind):
        _joined(kinds[kind], ids, skip, f"; skip_special_tokens={skip}{kind}")

    same()
