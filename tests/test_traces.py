"""Lab 13's generator against what was computed from the published traces, and trace files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nanovllm.observability.analysis import prefix_hits, top_share
from nanovllm.observability.errors import TraceError
from nanovllm.observability.files import load, write_jsonl
from nanovllm.observability.generator import generate
from nanovllm.observability.shapes import (
    AZURE_CODE,
    AZURE_CONVERSATION,
    MARKS,
    MOONCAKE,
    Shape,
)

# Seconds of the recorded trace; mean prompt and output; CV of gaps, peak to mean at 1 s and 60 s,
# share of gaps below 10 ms, where it is known.
PUBLISHED = [
    (AZURE_CODE, 3392, (2048, 28), (13.2, 26, 4.2, 0.39)),
    (AZURE_CONVERSATION, 3521, (1155, 211), (1.09, 2.9, 1.5)),
    (MOONCAKE, 3539, (12035, 343), (3.0, 8.2, 1.2)),
]


def arrival_figures(times: np.ndarray) -> list[float]:
    gaps, mean = np.diff(times), len(times) / times[-1]
    peaks = [np.bincount((times // w).astype(int)).max() / w / mean for w in (1, 60)]
    return [gaps.std() / gaps.mean(), *peaks, (gaps < 0.01).mean()]


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.proof)])
@pytest.mark.parametrize("published", PUBLISHED, ids=lambda row: row[0].name)
def test_generated_traces_are_like_the_published(published: tuple, seeds: int) -> None:
    shape, seconds, means, arrivals = published
    found = []
    for seed in range(seeds):
        trace = generate(shape, seconds, seed)
        for lengths, wanted, mean in (
            ([r.prompt for r in trace], shape.prompts, means[0]),
            ([r.output for r in trace], shape.outputs, means[1]),
        ):
            quantiles = np.quantile(lengths, MARKS[1:-2])
            assert quantiles == pytest.approx(wanted[1:-2], rel=0.03, abs=1), (shape.name, seed)
            assert np.mean(lengths) == pytest.approx(mean, rel=0.03)
        found.append(arrival_figures(np.array([r.time for r in trace])))
    mean_of_seeds = np.mean(found, axis=0)[: len(arrivals)]
    assert mean_of_seeds == pytest.approx(arrivals, rel=0.2 if seeds == 20 else 0.3)


def test_generated_sessions_hit_like_mooncakes() -> None:
    """Published: 4, 21, 36 and 37 % of the blocks, by the number that is kept."""
    trace = generate(MOONCAKE, 3539, 0)
    for kept, share in ((1000, 0.04), (10_000, 0.21), (50_000, 0.36), (None, 0.37)):
        hits, total = prefix_hits(trace, kept)
        assert hits / total == pytest.approx(share, abs=0.03)


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    trace = generate(MOONCAKE, 60, 3)
    write_jsonl(trace, tmp_path / "trace.jsonl")
    again = load(tmp_path / "trace.jsonl")
    assert [(r.prompt, r.output, r.session, r.blocks) for r in again] == [
        (r.prompt, r.output, r.session, r.blocks) for r in trace
    ]
    assert [r.time for r in again] == pytest.approx([r.time for r in trace], abs=1e-3)


@pytest.mark.parametrize(("name", "text", "says"), [
    ("empty.csv", "", "has no requests"),
    ("head.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
    ("other.csv", "a,b\n1,2\n", "has the columns"),
    ("text.jsonl", "hello\n", "line 1 is no JSON"),
    ("list.jsonl", "[1]\n", "line 1 is no JSON object"),
    ("minus.jsonl", json.dumps({"timestamp": 1, "input_length": -4, "output_length": 1}), "line 1"),
    ("short.csv", "Timestamp,Request tokens,Response tokens\n1,5\n", "line 2: Response tokens"),
])  # fmt: skip
def test_files_that_cannot_be_used(name: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=says):
        load(tmp_path / name)


def test_a_shape_of_no_requests_is_refused() -> None:
    shape = Shape("x", 0.001, AZURE_CODE.prompts, AZURE_CODE.outputs)
    with pytest.raises(TraceError, match="make none"):
        generate(shape, 10)


def test_the_top_share_is_as_many_values_as_it_says() -> None:
    """0.07 of 100 is 7.000000000000001 in floats, and 7 values."""
    for count in (1, 7, 100, 300, 999):
        for percent in range(101):
            many = -(-percent * count // 100)
            assert top_share([1.0] * count, percent / 100) == pytest.approx(many / count)
    assert top_share([3.0, 1.0], 1e-15) == 0.75
