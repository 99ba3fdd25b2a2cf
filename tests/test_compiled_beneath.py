"""The compiled step beneath a student's scheduler, block manager and sampler."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from grader.course.paths import REFERENCE
from nanovllm.fast import available
from tests.processes import lines_of

PROGRAM = """
import json
from nanovllm import LLM, SamplingParams
llm = LLM(enforce_eager=False, max_num_seqs=2)
engine = llm.runner.engine
ready = engine.wait() if hasattr(engine, "wait") else None
params = [SamplingParams(temperature=0, max_tokens=12), SamplingParams(seed=3, max_tokens=12)]
found = llm.generate(["The dog", "One day a small fox"], params, use_tqdm=False)
print(json.dumps({
    "step": llm.rung.step, "ready": ready,
    "tokens": [list(each.outputs[0].token_ids) for each in found],
}))
"""


def answer(mine: Path) -> dict:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NANOVLLM_")}
    environment |= {"NANOVLLM_MINE": str(mine), "NANOVLLM_STATE": str(mine / "state")}
    return json.loads(lines_of(PROGRAM, env=environment)[-1])


def start(mine: Path, *packages: str) -> Path:
    for package in packages:
        shutil.copytree(REFERENCE / package, mine / package)
    mine.mkdir(exist_ok=True)
    return mine


@pytest.mark.skipif(available() is not None, reason=f"no compiled step here: {available()}")
def test_it_stays_beneath_what_it_does_not_replace(tmp_path: Path) -> None:
    reference = answer(start(tmp_path / "nothing"))
    assert (reference["step"], reference["ready"]) == ("compiled", True)
    above = answer(start(tmp_path / "above", "generation", "batching", "paging"))
    assert above["step"] == "compiled, beneath your own generation, batching, paging"
    assert above["ready"] is True and above["tokens"] == reference["tokens"]
    model = answer(start(tmp_path / "model", "model"))
    assert model["step"] == "plain: your own code of model is to run"
    assert len(model["tokens"][0]) == 12


@pytest.mark.skipif(available() is not None, reason=f"no compiled step here: {available()}")
def test_a_students_sampler_draws_every_token(tmp_path: Path) -> None:
    """A sampler of one's own that prefers token 7 is seen at work, greedy rows included."""
    mine = start(tmp_path / "mine", "generation")
    sampling = mine / "generation" / "sampling.py"
    sampling.write_text(
        sampling.read_text(encoding="utf-8") + "\n\n_real = sample\n\n\ndef sample(logits, rows):\n"
        "    return [Sampled(7) for _ in _real(logits, rows)]\n",
        encoding="utf-8",
    )
    assert answer(mine)["tokens"] == [[7] * 12, [7] * 12]
