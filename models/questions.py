"""Held-out questions with known answers, in the form the models are asked."""

from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast

from .corpus.chat import exchange, fact_request, sum_request
from .corpus.facts import FACTS
from .corpus.names import people
from .corpus.recall import announce, answer, any_code, filler, question
from .corpus.spans import CONTEXT, Span, join, plain
from .corpus.sums import any_sum
from .network import Network


@dataclass(frozen=True)
class Question:
    """A prompt, and the text that greedy decoding has to continue it with."""

    prompt: str
    expected: str


def _chat(asked: str, reply: str) -> Question:
    text = plain(exchange(asked, [Span(reply)]))
    start = text.rindex(reply)
    return Question(text[:start], reply + "<|im_end|>")


def fact_chat_questions() -> list[Question]:
    """Return every fact as the first message of a conversation."""
    return [_chat(fact.question, plain(fact.statement())) for fact in FACTS]


def fact_rephrased_questions(seed: int = 1) -> list[Question]:
    """Return every fact asked in one of the other phrasings."""
    rng = Random(seed)
    return [_chat(fact_request(rng, fact), plain(fact.statement())) for fact in FACTS]


def fact_plain_questions() -> list[Question]:
    """Return every fact as a sentence to complete."""
    return [Question(fact.stem, f" {fact.answer}.") for fact in FACTS]


def sum_questions(count: int, held_out: bool, seed: int = 2) -> list[Question]:
    """Return sums in chat form, all of them either kept out of training or not."""
    rng = Random(seed)
    questions = []
    while len(questions) < count:
        exercise = any_sum(rng)
        if exercise.held_out == held_out:
            reply = plain(exercise.solution())
            questions.append(_chat(sum_request(rng, exercise), reply))
    return questions


def recall_question(
    rng: Random,
    tokenizer: PreTrainedTokenizerFast,
    low: int,
    high: int,
    limit: int,
    others: int = 3,
    chat: bool = False,
    made_up: float = 0.0,
) -> Question:
    """Return a question for a code told between low and high tokens before its answer.

    Other people's codes stand around it, so that position alone does not give the answer.
    """

    def size(text: str) -> int:
        return len(tokenizer(text)["input_ids"])

    while True:
        (name, code), *rest = [
            (name, any_code(rng)) for name in people(rng, rng.randint(1, 1 + others), made_up)
        ]
        asked = question(name)
        reply = plain(answer(name, code))
        wanted = rng.uniform(low, high)
        parts: list[list[Span]] = []
        codes_after = [announce(*other) for other in rest if rng.random() < 0.5]
        length = size(asked + " " + reply) + sum(12 for _ in codes_after)
        while length < wanted:
            part = filler(rng)
            length += size(plain(part)) + 1
            if length > high + 20:
                break
            parts.append(part)
        for part in codes_after:
            parts.insert(rng.randint(0, len(parts)), part)
        codes_before = [announce(*other) for other in rest if announce(*other) not in codes_after]
        parts = [*codes_before, announce(name, code), *parts]
        text = plain(join([*parts, [Span(asked, CONTEXT)]]))
        if chat:
            made = _chat(text, reply)
            made = Question(made.prompt + f"{name}'s code is", f" {code}.")
        else:
            made = Question(f"{text} {name}'s code is", f" {code}.")
        distance = size(made.prompt[made.prompt.index(code) :]) - 4
        total = size(made.prompt + made.expected)
        if low <= distance < high and total <= limit:
            return made


@torch.no_grad()
def share_right(
    network: Network,
    tokenizer: PreTrainedTokenizerFast,
    questions: list[Question],
    batch: int = 32,
) -> float:
    """Return the share of questions that greedy decoding continues exactly as expected.

    One pass over prompt and answer is enough: greedy decoding gives the answer if and only if
    each of its tokens is the most likely one after those before it.
    """
    return sum(rights(network, tokenizer, questions, batch)) / len(questions)


@torch.no_grad()
def rights(
    network: Network,
    tokenizer: PreTrainedTokenizerFast,
    questions: list[Question],
    batch: int = 32,
) -> list[bool]:
    """Return for each question whether greedy decoding continues it exactly as expected."""
    device = next(network.parameters()).device
    encoded = []
    for index, asked in enumerate(questions):
        ids = tokenizer(asked.prompt + asked.expected)["input_ids"]
        encoded.append((len(ids), index, ids, len(tokenizer(asked.prompt)["input_ids"])))
    encoded.sort()
    right = [False] * len(questions)
    for start in range(0, len(encoded), batch):
        group = encoded[start : start + batch]
        longest = group[-1][0]
        # Padding stands on the right, where causal attention does not see it.
        ids = torch.stack([F.pad(torch.tensor(row[2]), (0, longest - row[0])) for row in group])
        ids = ids.to(device)
        positions = torch.arange(longest, device=device).expand(len(group), -1)
        picks = network(ids, positions).argmax(-1)
        for row, (length, index, _, begin) in enumerate(group):
            same = picks[row, begin - 1 : length - 1] == ids[row, begin:length]
            right[index] = bool(same.all())
    return right
