"""Which guesses the bundled target would have accepted: 30 prompts, two ways to guess."""

from random import Random
from typing import Any

import torch
from transformers import AutoTokenizer

from models.corpus.repeats import repeated_list
from models.corpus.spans import plain
from models.corpus.stories import story
from models.questions import fact_chat_questions, recall_question, sum_questions
from nanovllm.batching.request import Request
from nanovllm.batching.simulated import SimulatedSequence
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Transformer
from nanovllm.speculative.lookup import PromptLookup
from nanovllm.speculative.proposer import Ask

EACH, LONGEST, MOST = 6, 48, 8


def record() -> list[Any]:
    """Kind of prompt, way to guess, and for each token of the answer: guesses found, and right."""
    target, draft = (load_model(f"models/{name}", torch.float64) for name in ("target", "draft"))
    runs = []
    for kind, ids in _prompts():
        text = _greedy(target, ids)
        guesses = _likeliest(draft, [*ids, *text])[len(ids) - 1 : -1]
        same = [token == guess for token, guess in zip(text, guesses, strict=True)]
        drafted = [(MOST, _run(same[p : p + MOST])) for p in range(len(text))]
        for way, pairs in (("draft", drafted), ("ngram", _lookup(ids, text))):
            found, right = ("".join(map(str, column)) for column in zip(*pairs, strict=True))
            runs.append([kind, way, found, right])
    return runs


def _prompts() -> list[tuple[str, list[int]]]:
    """Six prompts of each kind, the kinds in turn."""
    rng, tokenizer = Random(8), AutoTokenizer.from_pretrained("models/target")
    facts, sums = fact_chat_questions(), sum_questions(EACH, held_out=True, seed=8)
    texts = {
        "stories": [_words(story(rng), 8) for _ in range(EACH)],
        "facts": [q.prompt for q in rng.sample(facts, EACH)],
        "sums": [q.prompt for q in sums],
        "recall": [
            recall_question(rng, tokenizer, 40, 200, 300, chat=n % 2 == 1).prompt
            for n in range(EACH)
        ],
        "lists": [_half(plain(repeated_list(rng, 14))) for _ in range(EACH)],
    }
    return [
        (kind, tokenizer(prompts[n])["input_ids"])
        for n in range(EACH)
        for kind, prompts in texts.items()
    ]


def _words(text: str, count: int) -> str:
    return " ".join(text.split()[:count])


def _half(text: str) -> str:
    """A list, and the first word of its second time."""
    end = text.index("Again: ") + len("Again: ")
    return text[:end] + text[end:].split(",")[0] + ","


@torch.inference_mode()
def _greedy(model: Transformer, ids: list[int]) -> list[int]:
    cache = ContiguousCache(model.config, len(ids) + LONGEST, torch.float64)
    text: list[int] = []
    new = ids
    while len(text) < LONGEST and (not text or text[-1] not in model.config.eos_token_ids):
        new = [int(model.logits(forward_cached(model, cache, torch.tensor(new))[-1]).argmax())]
        text += new
    return text


@torch.inference_mode()
def _likeliest(model: Transformer, ids: list[int]) -> list[int]:
    cache = ContiguousCache(model.config, len(ids), torch.float64)
    return model.logits(forward_cached(model, cache, torch.tensor(ids))).argmax(-1).tolist()


def _lookup(ids: list[int], text: list[int]) -> list[tuple[int, int]]:
    """Guesses found and right at each token."""
    lookup, sequence = PromptLookup(1, 3), SimulatedSequence(0, 0, len(text))
    sequence.output_token_ids = list(ids)
    request = Request(0, sequence, 0.0, len(ids) + len(text))
    pairs = []
    for p, token in enumerate(text):
        [guesses] = lookup.propose([Ask(request, MOST)])
        found = guesses.token_ids[: len(text) - p]
        pairs.append((len(found), _run([a == b for a, b in zip(found, text[p:], strict=False)])))
        request.sequence.output_token_ids.append(token)
    return pairs


def _run(same: list[bool]) -> int:
    """The first so many are true."""
    return [*same, False].index(False)
