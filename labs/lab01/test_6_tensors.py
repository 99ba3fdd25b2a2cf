"""Task 6: ids as tensors, and the price of a vocabulary."""

from dataclasses import asdict, replace

import pytest
import torch

from grader import expect
from grader.checks.text_cases import ByteTokenizer
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.hf_format import plain_spec
from nanovllm.tokenization.tensors import embed, pad_batch, truncate, vocabulary_cost
from nanovllm.tokenization.vocabulary import BPEModel


def _sequences(rng):
    """Unequal lengths, one empty; 0 is the padding and a real token as well."""
    lengths = [4, 0, 1, *rng.integers(2, 9, 3).tolist(), 9]
    return [[0, *rng.integers(0, 50, n).tolist()][:n] for n in lengths]


def _rectangles(sequences, pad, side):
    """The oracle, in lists."""
    longest = max(map(len, sequences))
    fill = [longest - len(ids) for ids in sequences]

    def rows(contents, filler):
        pads = [[filler] * n for n in fill]
        pairs = zip(pads, contents, strict=True)
        return [p + c if side == "left" else c + p for p, c in pairs]

    return {
        "token_ids": torch.tensor(rows(sequences, pad)),
        "mask": torch.tensor(rows([[True] * len(ids) for ids in sequences], False)),
        "positions": torch.tensor(rows([list(range(len(ids))) for ids in sequences], 0)),
    }


@pytest.mark.check(task=6, points=2, title="Embedding is a lookup, and refuses foreign ids")
def test_embed(generator):
    weight = torch.randn(11, 6, generator=generator)
    for shape in ((7,), (2, 5), ()):
        ids = torch.randint(0, 11, shape, generator=generator)
        expect(
            embed(ids, weight),
            torch.nn.functional.embedding(ids, weight),
            call=f"embed(ids {list(shape)}, weight [11, 6])",
            cause="one row for each id, unchanged.",
        )
    for wrong in (-1, 11, -11):
        expect.raises(
            TokenizerError,
            lambda wrong=wrong: embed(torch.tensor([3, wrong, 0]), weight),
            match=rf"{wrong}\b",
            call=f"embed(torch.tensor([3, {wrong}, 0]), weight [11, 6])",
            cause="an id outside 0..10 is refused, and named; -1 is not the last row.",
        )


@pytest.mark.check(task=6, points=3, title="Batches are padded, masked and counted")
def test_pad(rng):
    sequences = _sequences(rng)
    for side in ("left", "right"):
        batch = pad_batch(sequences, pad_id=0, side=side)
        for name, expected in _rectangles(sequences, 0, side).items():
            expect(
                getattr(batch, name),
                expected,
                call=f"pad_batch(sequences, pad_id=0, side={side!r}).{name}",
                given={"sequences": sequences},
                cause="mask and positions follow the real tokens, also where one equals pad_id.",
            )
    expect(
        pad_batch(sequences, pad_id=7).token_ids,
        _rectangles(sequences, 7, "left")["token_ids"],
        call="pad_batch(sequences, pad_id=7).token_ids",
        cause="padding is on the left by default, and has the id given.",
    )
    for nothing in ([], [[], []]):
        expect.raises(
            TokenizerError,
            lambda nothing=nothing: pad_batch(nothing, 0),
            call=f"pad_batch({nothing}, 0)",
            cause="a batch without a token is refused in one sentence.",
        )


@pytest.mark.check(task=6, points=2, title="Too long a prompt loses its beginning")
def test_truncate(rng):
    ids = rng.integers(0, 99, 8).tolist()
    for limit, keep, expected in (
        (3, 0, ids[5:]),
        (3, 1, [ids[0], *ids[6:]]),
        (2, 2, ids[:2]),
        (8, 0, ids),
        (20, 1, ids),
        (0, 0, []),
        (1, 1, ids[:1]),
    ):
        expect(
            truncate(ids, limit, keep_first=keep),
            expected,
            call=f"truncate(ids, {limit}, keep_first={keep})",
            given={"ids": ids},
            cause="the end of a prompt stays; [-0:] is the whole list, not nothing.",
        )
    for limit, keep in ((-1, 0), (2, 3)):
        expect.raises(
            TokenizerError,
            lambda limit=limit, keep=keep: truncate(ids, limit, keep_first=keep),
            call=f"truncate(ids, {limit}, keep_first={keep})",
        )


@pytest.mark.check(task=6, points=2, title="A vocabulary's price in bytes, its worth in length")
def test_vocabulary_cost(rng):
    model = BPEModel({bytes([b]): b for b in range(256)}, [], {"<|end|>": 258})
    tokenizer = ByteTokenizer(plain_spec(model))
    texts = ["abab", "世界é", "", "x" * int(rng.integers(2, 9)), "<|end|>", "\ud83d"]
    tokens = nbytes = 4 + 8 + len(texts[3]) + 7 + 3
    fallback = BPEModel(
        {f"<0x{b:02X}>".encode(): b for b in range(256)} | {"世".encode(): 299},
        [],
        byte_fallback=True,
    )
    shorter = vocabulary_cost(
        ByteTokenizer(replace(plain_spec(fallback), steps=())), iter(["世世", "a"]), 4, True
    )
    expect(
        [shorter.tokens, shorter.bytes_per_token, shorter.parameters],
        [3, 7 / 3, 1200],
        call="vocabulary_cost(tokenizer, iter(['世世', 'a']), 4, True)",
        given={"tokens": "世 is one token, with id 299"},
        cause="length is counted in UTF-8 bytes a token, V is the largest id + 1.",
    )
    for hidden, tied, dtype, size in (
        (64, True, torch.bfloat16, 2),
        (48, False, torch.float32, 4),
    ):
        cost = vocabulary_cost(tokenizer, texts, hidden, tied, dtype, cache_bytes_per_token=96)
        parameters = 259 * hidden * (1 if tied else 2)
        expect(
            asdict(cost),
            {
                "parameters": parameters,
                "nbytes": parameters * size,
                "tokens": tokens,
                "bytes_per_token": nbytes / tokens,
                "cache_nbytes": tokens * 96,
            },
            call=f"vocabulary_cost(tokenizer, texts, {hidden}, tied={tied}, {dtype}, 96)",
            given={"texts": texts, "ids": 259},
            cause="an embedding of V rows, and an output layer of V rows unless tied.",
        )
    expect(
        vocabulary_cost(tokenizer, [], 8, True).bytes_per_token,
        0.0,
        call="vocabulary_cost(tokenizer, [], 8, True).bytes_per_token",
        cause="no tokens, no quotient.",
    )
