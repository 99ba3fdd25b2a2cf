"""lm-evaluation-harness against `nanovllm serve` and against transformers, on tasks of our own.

Run by a Python that has lm-eval: its `local-completions` and `local-chat-completions` ask the
server, its `hf` runs transformers. Both in float32, so scores are to be equal.
"""

import argparse
import importlib.metadata
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from models.corpus import Mixture, document
from models.corpus.facts import FACTS
from models.corpus.spans import plain
from models.questions import Question, sum_questions
from nanovllm.bench.record import record, save
from nanovllm.bench.serve_process import own_server

MODEL = Path(__file__).resolve().parent.parent / "models" / "target"
COUNT = 60  # documents of each task
TEXTS, CHATS = ["nano_facts", "nano_texts"], ["nano_sums"]
_CHOICE = {"output_type": "multiple_choice", "doc_to_text": "{{stem}}", "target_delimiter": " ",
           "doc_to_choice": "{{choices}}", "doc_to_target": "{{label}}"}  # fmt: skip
_TEXT = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
         "metric_list": [{"metric": "bits_per_byte"}, {"metric": "word_perplexity"}]}  # fmt: skip
_ANSWER = {"output_type": "generate_until", "doc_to_text": "{{asked}}", "target_delimiter": "",
           "doc_to_target": "{{answer}}", "metric_list": [{"metric": "exact_match"}],
           "generation_kwargs": {"until": ["<|im_end|>"], "max_gen_toks": 24}}  # fmt: skip


def documents() -> dict[str, list[dict[str, Any]]]:
    """What is asked, by task: facts with three wrong answers, texts, sums."""
    rng = random.Random("harness")
    choices = []
    for fact in rng.sample(FACTS, COUNT):
        others = sorted(
            {other.answer for other in FACTS if other.kind == fact.kind} - {fact.answer}
        )
        options = [*rng.sample(others, min(3, len(others))), fact.answer]
        rng.shuffle(options)
        choices.append({"stem": fact.stem, "choices": options, "label": options.index(fact.answer)})
    texts = [{"text": plain(document(rng, Mixture()))} for _ in range(COUNT)]
    sums = [_turns(asked) for asked in sum_questions(COUNT, held_out=True)]
    return {"facts": choices, "texts": texts, "sums": sums}


def _turns(asked: Question) -> dict[str, str]:
    """What the user says and what the assistant answers, without the template's marks."""
    said, _ = asked.prompt.removeprefix("<|im_start|>user\n").split("<|im_end|>")
    return {"asked": said, "answer": asked.expected.removesuffix("<|im_end|>")}


def write_tasks(folder: Path) -> None:
    """The tasks as lm-eval reads them: a file of documents and one of settings for each."""
    settings = {"facts": _CHOICE, "texts": _TEXT, "sums": _ANSWER}
    for name, rows in documents().items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        task = {
            "task": f"nano_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            **settings[name],
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML


def evaluate(model: str, arguments: dict[str, Any], tasks: list[str], folder: Path) -> dict:
    """Results and samples of one run of lm-eval."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    return simple_evaluate(
        model,
        model_args=arguments,
        tasks=tasks,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        batch_size=4,
        device="cpu",
        apply_chat_template=tasks == CHATS,
    )


def likelihoods(found: dict, task: str) -> list[float]:
    """Every log-likelihood of a task, in order."""
    rows = sorted(found["samples"][task], key=lambda row: row["doc_id"])
    flat = [value for row in rows for value in row["filtered_resps"]]
    return [float(value[0] if isinstance(value, list | tuple) else value) for value in flat]


def apart(one: dict, other: dict, task: str) -> float:
    """The largest difference between two log-likelihoods of the same text."""
    pairs = zip(likelihoods(one, task), likelihoods(other, task), strict=True)
    return max(abs(a - b) for a, b in pairs)


def answers(found: dict) -> list[str]:
    """What was generated, in order."""
    rows = sorted(found["samples"]["nano_sums"], key=lambda row: row["doc_id"])
    return [row["filtered_resps"][0].strip() for row in rows]


def scores(found: dict | None) -> dict[str, dict[str, float]]:
    """The metrics of each task."""
    return {
        task: {name: value for name, value in row.items() if isinstance(value, float)}
        for task, row in (found["results"].items() if found else ())
    }


def main() -> None:
    """Ask both, compare, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--eager", action="store_true", help="the plain step, not the compiled one")
    asked = parser.parse_args()
    os.environ.setdefault("OPENAI_API_KEY", "-")
    options = ["--dtype", "float32", "--served-model-name", "target"]
    options += ["--enforce-eager"] if asked.eager else []
    with tempfile.TemporaryDirectory() as place, own_server(options) as (url, _):
        folder = Path(place)
        write_tasks(folder)
        common = {"model": "target", "max_length": 512, "num_concurrent": 8}
        completions = {
            "base_url": f"{url}/v1/completions",
            "tokenizer": str(MODEL),
            "tokenizer_backend": "huggingface",
        }
        ways = {
            "hf": {"pretrained": str(MODEL), "dtype": "float32", "max_length": 511},
            "local-completions": common | completions,
            "local-chat-completions": common | {"base_url": f"{url}/v1/chat/completions"},
        }
        texts = {way: evaluate(way, ways[way], TEXTS, folder) for way in list(ways)[:2]}
        chats = {way: evaluate(way, ways[way], CHATS, folder) for way in ways}
    results = {
        "scores": {way: scores(texts.get(way)) | scores(chats[way]) for way in ways},
        "log_likelihoods": {task: len(likelihoods(texts["hf"], task)) for task in TEXTS},
        "farthest_apart": {task: apart(*texts.values(), task) for task in TEXTS},
        "same_answers": {way: answers(chats[way]) == answers(chats["hf"]) for way in ways},
    }
    settings = {"lm-eval": importlib.metadata.version("lm-eval"), "dtype": "float32",
                "documents": COUNT, "step": "plain" if asked.eager else "compiled"}  # fmt: skip
    print(json.dumps(results, indent=1))
    save(record("harness", settings, results), asked.out / "harness.json")


if __name__ == "__main__":
    main()
