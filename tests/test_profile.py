"""`nanovllm profile`: steps and operations as counts, and a trace that a browser can draw."""

import json

from tests.processes import run


def test_a_profile_of_the_bundled_model(tmp_path) -> None:
    out = tmp_path / "trace.json"
    done = run("profile", "--max-tokens", "5", "--requests", "2", "--warmup", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "host share" in done.stdout and "aten::linear" in done.stdout
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
