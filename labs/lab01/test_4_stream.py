"""Task 4: text of a token stream."""

import pytest

from grader import expect
from nanovllm.tokenization.bpe import BPEModel
from nanovllm.tokenization.detokenizer import StreamingDetokenizer
from nanovllm.tokenization.tokenizer import Tokenizer

END = 256


def _tokenizer(*more):
    """One token a byte, <|end|>, and what else the check needs."""
    vocab = {bytes([b]): b for b in range(256)} | {t: END + 1 + i for i, t in enumerate(more)}
    return Tokenizer(BPEModel(vocab, [], {"<|end|>": END}))


def _pieces(stream, ids):
    return [stream.push(id) for id in ids]


def _whole_characters(rng):
    return "".join(rng.choice(list("aé世🙂ß \n¿"), 30))


@pytest.mark.check(task=4, points=3, title="The pieces join to the decoded text")
def test_pieces_join(rng):
    words = [" né".encode()[:3], "世界".encode()[1:5], "🙂".encode()[2:], b" a"]
    tokenizer = _tokenizer(*words)
    for _ in range(20):
        ids = rng.choice([*range(END + 1, END + 5), 0x41, 0xC3, 0xE4, 0xF0, 0x9F], 12).tolist()
        data = b"".join(tokenizer.token_bytes(id) for id in ids)
        stream = StreamingDetokenizer(tokenizer)
        expect(
            "".join(_pieces(stream, ids)) + stream.flush(),
            data.decode("utf-8", "replace"),
            call=f"push of {ids}, then flush, joined",
            given={"tokens": [tokenizer.token_bytes(id) for id in ids]},
            cause="text is lost, doubled, or cut within a character.",
        )


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
    seen = [*_pieces(stream, b"a\xf0\x9f"), stream.flush(), stream.flush()]
    expect(
        seen,
        ["a", "", "", "\ufffd", ""],
        call=r"push of b'a', b'\xf0', b'\x9f', then flush twice",
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
    for skip, pieces in (
        (True, ["", "", "é", ""]),
        (False, ["", "\ufffd<|end|>", "\ufffd", "<|end|>"]),
    ):
        expect(
            _pieces(StreamingDetokenizer(_tokenizer(), skip_special_tokens=skip), ids),
            pieces,
            call=f"push of b'\\xc3', <|end|>, b'\\xa9', <|end|>; skip_special_tokens={skip}",
            cause="a skipped token changes nothing, not even what is held.",
        )


@pytest.mark.check(task=4, points=1, title="A token costs its own bytes, however long the stream")
def test_cost(rng):
    asked = []

    class Watched(Tokenizer):
        def token_bytes(self, token_id):
            asked.append(token_id)
            return super().token_bytes(token_id)

        def decode_bytes(self, ids):
            ids = list(ids)
            asked.extend(ids)
            return b"".join(self._bytes[id] for id in ids)

        def decode(self, ids, skip_special_tokens=False):
            return self.decode_bytes(ids).decode("utf-8", "replace")

    ids = list(_whole_characters(rng).encode())
    _pieces(StreamingDetokenizer(Watched(_tokenizer().model)), ids)
    expect.that(
        0 < len(asked) <= 2 * len(ids),
        f"{len(ids)} pushes read at most {2 * len(ids)} tokens",
        observed=len(asked),
        call=f"{len(ids)} pushes, counting the tokens whose bytes are read",
        cause="every push decodes tokens again that were shown before.",
    )
