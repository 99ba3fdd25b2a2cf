"""Questions to guess at before lab 01 is written; your own code answers them."""

from random import Random

from grader.course.paths import MODELS
from grader.student.predict import Question


def merges_learned() -> float:
    from nanovllm.tokenization.bpe import train_bpe

    return len(train_bpe(["hug hug hugs bun bun pun"], 300).merges)


def tokens_of_chinese() -> float:
    from nanovllm.tokenization.tokenizer import Tokenizer

    return len(Tokenizer.from_pretrained(MODELS / "target").encode("从前有一只小青蛙。"))


class Counting(dict):
    """Ranks that count how often they are asked."""

    asked = 0

    def get(self, pair: object, default: object = None) -> object:
        self.asked += 1
        return super().get(pair, default)

    def __getitem__(self, pair: object) -> object:
        self.asked += 1
        return super().__getitem__(pair)

    def __contains__(self, pair: object) -> bool:
        self.asked += 1
        return super().__contains__(pair)


def ranks_asked() -> float:
    from nanovllm.tokenization.encode import merge_word

    letters = [bytes([letter]) for letter in Random(3).choices(b"abcd", k=2000)]
    pairs = [(a + b, c + d) for a in (b"", b"a") for b in (b"a", b"b") for c in (b"", b"c")
             for d in (b"a", b"c", b"d")]  # fmt: skip
    ranks = Counting({pair: rank for rank, pair in enumerate(pairs)})
    merge_word(letters, ranks)
    return ranks.asked


def million_weights() -> float:
    from nanovllm.tokenization.tensors import vocabulary_cost
    from nanovllm.tokenization.tokenizer import Tokenizer
    from nanovllm.tokenization.vocabulary import BPEModel

    tokenizer = Tokenizer(BPEModel({b"a": 0}, [], {"<|last|>": 128_255}))
    return vocabulary_cost(tokenizer, [], 4096, tied=False).parameters / 1e6


QUESTIONS = [
    Question(
        key="a",
        text="Training on 'hug hug hugs bun bun pun': how many merges are learned before no pair "
        "occurs twice?",
        unit="merges",
        tasks=(1,),
        answer=merges_learned,
    ),
    Question(
        key="b",
        text="How many tokens does the bundled tokenizer make of 从前有一只小青蛙。, nine "
        "characters that it never saw?",
        unit="tokens",
        tasks=(2, 3),
        answer=tokens_of_chinese,
    ),
    Question(
        key="c",
        text="A word of 2,000 random letters from abcd, with 24 merges: how many times does your "
        "merge_word look up a rank?",
        unit="look-ups",
        tasks=(2,),
        answer=ranks_asked,
    ),
    Question(
        key="d",
        text="How many million weights does a vocabulary of 128,256 cost at E = 4,096, not tied?",
        unit="million weights",
        tasks=(6,),
        answer=million_weights,
    ),
]
