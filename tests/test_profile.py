"""`nanovllm profile`: steps and operations as counts, and a trace that a browser can draw."""

import json

import pytest
import torch

from nanovllm.bench.limits import bytes_per_second, flops_per_second
from nanovllm.cli.profile_roofline import draw, summed, work_of
from nanovllm.performance.interval import Interval
from nanovllm.performance.profile import roofline_point
from tests.processes import run


def test_a_profile_of_the_bundled_model(tmp_path) -> None:
    out = tmp_path / "trace.json"
    picture = tmp_path / "roofline.png"
    words = ["--max-tokens", "5", "--requests", "2", "--warmup", "2", "--roofline", picture]
    done = run("profile", *words, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "host share" in done.stdout and "aten::linear" in done.stdout
    assert "of the roof" in done.stdout and picture.read_bytes().startswith(b"\x89PNG")
    events = json.loads(out.read_text())["traceEvents"]
    steps = [e for e in events if e["ph"] == "X" and e["name"] == "step"]
    linears = [e for e in events if e["name"] == "aten::linear"]
    assert len(steps) == 5 and len(linears) == 5 * (4 * 7 + 1)
    assert all(
        any(s["ts"] <= e["ts"] <= s["ts"] + s["dur"] for s in steps) for e in linears
    )  # fmt: skip
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"engine", "host"}


def test_no_step_left_is_refused() -> None:
    done = run("profile", "--max-tokens", "4", "--warmup", "4")
    assert done.returncode != 0 and "take fewer" in done.stderr


@pytest.mark.parametrize("option", ["--out", "--roofline"])
def test_a_place_that_is_not_there_is_refused_before_the_work(option: str, monkeypatch) -> None:
    monkeypatch.delattr("nanovllm.llm.LLM")
    done = run("profile", option, "/nowhere/a.json")
    assert done.returncode == 2
    assert f"{option} /nowhere/a.json cannot be written: there is no folder" in done.stderr


def test_work_of_operations() -> None:
    from torch.profiler import ProfilerActivity, profile

    x, weight, bias = torch.ones(4, 8), torch.ones(16, 8), torch.ones(16)
    q = torch.ones(1, 2, 3, 8)
    with (
        torch.inference_mode(),
        profile(activities=[ProfilerActivity.CPU], with_flops=True, record_shapes=True) as seen,
    ):
        torch.nn.functional.linear(x, weight, bias)
        x * x
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        x[:2].t()
    found = {e.name: work_of(e, 4) for e in seen.events() if e.cpu_parent is None}
    product = 4 * (16 + 4 * 8 + 8 * 16 + 4 * 16)
    assert found["aten::linear"] == (2 * 4 * 8 * 16, product)
    assert found["aten::mul"] == (32, 4 * 3 * 32)
    assert found["aten::scaled_dot_product_attention"] == (4 * 2 * 3 * 3 * 8, 4 * 4 * 48)
    assert found["aten::slice"] == found["aten::t"] == (0, 0)


def test_operations_of_one_name_are_summed_and_drawn(tmp_path) -> None:
    mm = [Interval("mm", 0, 2, flops=60, bytes=20), Interval("mm", 5, 6, flops=30, bytes=10)]
    whole = list(summed([*mm, Interval("view", 0, 9), Interval("add", 0, 9, flops=1, bytes=4)]))
    assert whole == [
        Interval("add", 0.0, 9, flops=1, bytes=4), Interval("mm", 0.0, 3, flops=90, bytes=30)
    ]  # fmt: skip
    points = {one.name: roofline_point(one, 100.0, 20.0) for one in whole}
    draw(points, 100.0, 20.0, tmp_path / "roof.png")
    assert (tmp_path / "roof.png").stat().st_size > 5000
    assert min(flops_per_second(torch.float32), bytes_per_second()) > 1e6
