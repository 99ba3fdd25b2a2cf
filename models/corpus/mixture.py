"""Which documents are drawn, and how often."""

from dataclasses import dataclass
from random import Random

from . import chat
from .facts import fact_passage
from .recall import dense_recall, long_recall
from .repeats import repeated_list
from .spans import Span, Spans, join
from .stories import story
from .sums import sum_passage


@dataclass(frozen=True)
class Mixture:
    """Relative frequency of each kind of document."""

    stories: float = 2.0
    facts: float = 2.0
    sums: float = 1.5
    fact_chats: float = 3.0
    sum_chats: float = 2.0
    chats: float = 2.0
    dense: float = 3.0
    recall: float = 2.0
    recall_chats: float = 1.5
    repeats: float = 0.0
    # A dense document takes up to 28 tokens a person.
    dense_people: int = 8
    dense_gaps: float = 0.0
    # Upper end of a recall document's length, in words (a word takes about 1.4 tokens).
    recall_words: int = 150
    # How much text there is in it for each code told, in long text and in chats.
    words_per_code: int = 100
    words_per_code_in_chats: int = 120


def document(rng: Random, mixture: Mixture) -> Spans:
    """Return one document of the mixture."""
    kinds = [
        (mixture.stories, lambda: [Span(story(rng))]),
        (mixture.facts, lambda: join([fact_passage(rng) for _ in range(rng.randint(1, 6))])),
        (mixture.sums, lambda: join([sum_passage(rng) for _ in range(rng.randint(1, 6))])),
        (mixture.fact_chats, lambda: _several(rng, chat.fact_exchange)),
        (mixture.sum_chats, lambda: _several(rng, chat.sum_exchange)),
        (mixture.chats, lambda: chat.conversation(rng)),
        (mixture.dense, lambda: dense_recall(rng, mixture.dense_people, mixture.dense_gaps)),
        (mixture.recall, lambda: _long_recall(rng, mixture)),
        (mixture.recall_chats, lambda: _recall_chat(rng, mixture)),
        (mixture.repeats, lambda: repeated_list(rng, 14)),
    ]
    weights = [weight for weight, _ in kinds]
    ((_, make),) = rng.choices(kinds, weights)
    spans = make()
    is_chat = spans[0].text.startswith("<|im_start|>")
    return chat.with_system(rng, spans) if is_chat else spans


def _several(rng: Random, make) -> Spans:
    spans = make(rng)
    while rng.random() < 0.5:
        spans += make(rng)
    return spans


def _long_recall(rng: Random, mixture: Mixture) -> Spans:
    return long_recall(rng, rng.randint(0, mixture.recall_words), mixture.words_per_code)


def _recall_chat(rng: Random, mixture: Mixture) -> Spans:
    words = rng.randint(0, mixture.recall_words)
    if rng.random() < 0.6:
        return chat.recall_chat(rng, words, mixture.words_per_code_in_chats)
    return chat.recall_message(rng, words)
