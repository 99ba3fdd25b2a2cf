"""Measure the saved models and write the model card: `python -m models.measure`."""

import json
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from . import tokenizer as shared_tokenizer
from .card import write_card
from .checkpoint import HERE, load_network
from .corpus import END_OF_TEXT, Mixture, document
from .network import Network
from .questions import (
    Question,
    fact_chat_questions,
    fact_plain_questions,
    fact_rephrased_questions,
    recall_question,
    share_right,
    sum_questions,
)
from .rows import encode

CONTEXT = 1024
# Distance in tokens from the code as told to its answer, up to the whole context.
BUCKETS = [
    (0, 32),
    (32, 64),
    (64, 128),
    (128, 256),
    (256, 384),
    (384, 512),
    (512, 640),
    (640, 768),
    (768, 896),
    (896, 1018),
]
# No training step draws from this seed.
HELD_OUT_SEED = "held out"
STORY_PROMPTS = ["Tell me a story about Mia.", "Tell me a story about a fox.", "Tell me a story."]
STORY_OPENINGS = ["Once upon a time", "One day, Ben"]


@torch.no_grad()
def held_out_loss(network: Network, tokenizer: PreTrainedTokenizerFast, rows: int = 64) -> float:
    """Return the plain mean loss per token on unseen rows of 512 tokens."""
    rng = Random(HELD_OUT_SEED)
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    total = 0.0
    for _ in range(rows):
        ids: list[int] = []
        while len(ids) < 513:
            ids += [*encode(tokenizer, document(rng, Mixture()))[0], end]
        row = torch.tensor([ids[:513]])
        logits = network(row[:, :-1], torch.arange(512)[None])
        total += F.cross_entropy(logits[0], row[0, 1:]).item()
    return total / rows


def recall_by_distance(
    network: Network,
    tokenizer: PreTrainedTokenizerFast,
    count: int,
    others: int = 0,
    chat: bool = False,
) -> list[dict[str, float]]:
    """Return for each bucket of distances the share of codes recalled without a wrong digit."""
    rng = Random(f"{HELD_OUT_SEED} {others} {chat}")
    # In a chat, more tokens stand between question and answer.
    buckets = BUCKETS if not chat else [(max(low, 20), high) for low, high in BUCKETS]
    result = []
    for low, high in buckets:
        questions = [
            recall_question(rng, tokenizer, low, high, CONTEXT, others, chat) for _ in range(count)
        ]
        share = share_right(network, tokenizer, questions, batch=16)
        result.append({"from": low, "to": high, "right": share, "questions": count})
        print(f"recall {low}-{high} others={others} chat={chat}: {share:.3f}", flush=True)
    return result


def recall_of(
    network: Network, tokenizer: PreTrainedTokenizerFast, count: int, others: int, made_up: float
) -> float:
    """Return the share recalled anywhere in 1000 tokens, with that many others told."""
    rng = Random(f"{HELD_OUT_SEED} {others} {made_up}")
    questions = []
    for _ in range(count):
        low = rng.choice([bucket[0] for bucket in BUCKETS[2:-1]])
        questions.append(
            recall_question(rng, tokenizer, low, low + 128, CONTEXT, others, made_up=made_up)
        )
    return share_right(network, tokenizer, questions, batch=16)


@torch.no_grad()
def agreement(draft, ids: Tensor, start: int) -> tuple[int, int]:
    """Return how many of the target's greedy tokens are the draft's greedy pick too, and of all."""
    picks = draft(ids).logits[0, start - 1 : -1].argmax(-1)
    return int((picks == ids[0, start:]).sum()), ids.size(1) - start


def generate(model, tokenizer: PreTrainedTokenizerFast, prompt: str, most: int = 200) -> Tensor:
    """Return prompt and greedy continuation, through transformers' own generate."""
    inputs = tokenizer(prompt, return_tensors="pt")
    return model.generate(**inputs, max_new_tokens=most, do_sample=False)


def samples_and_agreement(tokenizer: PreTrainedTokenizerFast) -> tuple[dict, dict]:
    """Return greedy samples, and by kind the share of tokens on which the models agree."""
    target, draft = (
        AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32).eval()
        for name in ("target", "draft")
    )
    rng = Random(HELD_OUT_SEED)
    kinds: dict[str, list[str]] = {
        "stories": [_chat_prompt(text) for text in STORY_PROMPTS] + STORY_OPENINGS,
        "facts": [q.prompt for q in rng.sample(fact_rephrased_questions(7), 40)],
        "sums": [q.prompt for q in sum_questions(40, held_out=False, seed=8)],
        "recall": [recall_question(rng, tokenizer, 50, 300, CONTEXT).prompt for _ in range(20)],
    }
    samples: dict[str, str] = {}
    agreements: dict[str, float] = {}
    for kind, prompts in kinds.items():
        agreed = total = 0
        for prompt in prompts:
            ids = generate(target, tokenizer, prompt, 200 if kind == "stories" else 24)
            start = len(tokenizer(prompt)["input_ids"])
            more, out_of = agreement(draft, ids, start)
            agreed, total = agreed + more, total + out_of
            if kind == "stories":
                text = tokenizer.decode(ids[0, start:], skip_special_tokens=True)
                assert isinstance(text, str)  # a list only of a batch
                samples[prompt] = text
        agreements[kind] = round(agreed / total, 4)
    return samples, agreements


def _chat_prompt(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def measure_model(name: str, tokenizer: PreTrainedTokenizerFast, count: int) -> dict:
    """Return the figures of one model, from its weights as saved in bf16."""
    network = load_network(name)

    def share(questions: list[Question]) -> float:
        return round(share_right(network, tokenizer, questions), 4)

    figures = {
        "parameters": sum(p.numel() for p in network.parameters()),
        "bytes": (HERE / name / "model.safetensors").stat().st_size,
        "held_out_loss": round(held_out_loss(network, tokenizer), 4),
        "facts_chat": share(fact_chat_questions()),
        "facts_rephrased": share(fact_rephrased_questions(5)),
        "facts_plain": share(fact_plain_questions()),
        "sums_trained": share(sum_questions(300, held_out=False)),
        "sums_held_out": share(sum_questions(300, held_out=True)),
        "recall": recall_by_distance(network, tokenizer, count),
        "recall_chat": recall_by_distance(network, tokenizer, count // 2, chat=True),
        "recall_among_others": recall_by_distance(network, tokenizer, count, others=3),
        "recall_made_up_names": recall_of(network, tokenizer, count, 3, made_up=1.0),
        "recall_of_ten": recall_of(network, tokenizer, count, 9, made_up=0.0),
    }
    print(name, json.dumps({k: v for k, v in figures.items() if "recall" not in k}), flush=True)
    return figures


def main() -> None:
    """Measure both models, then write measured.json and the model card."""
    tokenizer = shared_tokenizer.load()
    measured = {
        name: measure_model(name, tokenizer, count)
        for name, count in (("target", 100), ("draft", 40))
    }
    samples, agreements = samples_and_agreement(tokenizer)
    measured |= {"samples": samples, "agreement": agreements}
    (HERE / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
    write_card(measured)


if __name__ == "__main__":
    main()
