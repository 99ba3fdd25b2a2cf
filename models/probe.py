"""A look at the models while they train: a few questions of each kind."""

from random import Random

from transformers import PreTrainedTokenizerFast

from .network import Network
from .questions import (
    fact_chat_questions,
    fact_plain_questions,
    recall_question,
    share_right,
    sum_questions,
)


def quick_probe(network: Network, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Return the shares right on a small sample."""
    rng = Random(3)
    network.eval()

    def share(questions) -> float:
        return round(share_right(network, tokenizer, questions), 3)

    def recall(low: int, high: int, **options) -> float:
        return share(
            [recall_question(rng, tokenizer, low, high, 1024, **options) for _ in range(25)]
        )

    result = {
        "facts_chat": share(fact_chat_questions()[::4]),
        "facts_plain": share(fact_plain_questions()[::4]),
        "sums": share(sum_questions(100, held_out=True)),
        "recall_0": recall(0, 60),
        "recall_150": recall(150, 250),
        "recall_made_up": recall(60, 200, made_up=1.0),
        "recall_450": recall(450, 550),
        "recall_900": recall(850, 1000),
        "recall_chat": recall(100, 500, chat=True),
    }
    network.train()
    return result
