"""`nanovllm trace` and `nanovllm plan`: their figures, their refusals, and the page they write."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from nanovllm.observability.capacity_interface import Slo
from nanovllm.observability.cards import CARDS, LLAMA_8B
from nanovllm.observability.errors import CapacityError, TraceError
from nanovllm.observability.files import load
from nanovllm.observability.generator import generate
from nanovllm.observability.shapes import AZURE_CONVERSATION, MOONCAKE
from nanovllm.observability.trace import TracedRequest
from nanovllm.planning import page
from nanovllm.planning.planner import Asked, busiest, plan, variants
from nanovllm.planning.summary import summarize
from tests.processes import run
from tests.system_tools import require

TRACE = generate(MOONCAKE, 200.0, seed=3, rate=1.0)
ASKED = Asked(
    generate(AZURE_CONVERSATION, 20.0, seed=1), LLAMA_8B, CARDS["l4"], Slo(4.0, 0.2), price=2.0
)


@pytest.fixture(scope="module")
def answer():
    return plan(ASKED)


def test_figures_are_those_of_numpy() -> None:
    found = {figure.name: figure.value for figure in summarize(TRACE)}
    prompts = np.array([request.prompt for request in TRACE])
    p50, p99 = np.percentile(prompts, (50, 99))
    assert found["prompt tokens"] == f"{p50:,.0f}, {prompts.mean():,.0f}, {p99:,.0f}"
    gaps = np.diff([request.time for request in TRACE])
    assert found["gaps, CV"] == f"{gaps.std() / gaps.mean():.2f}"
    assert found["gaps under 10 ms"] == f"{(gaps < 0.01).mean():.1%}"
    assert found["sessions"] == f"{len({request.session for request in TRACE}):,}"
    hits = [float(v.rstrip("%")) for name, v in found.items() if name.startswith("prefix hits")]
    assert hits == sorted(hits) and hits[-1] > 0
    shuffled = sorted(TRACE, key=lambda request: request.prompt)
    assert summarize(shuffled)[:6] == summarize(TRACE)[:6]


def test_a_trace_of_nearly_nothing() -> None:
    with pytest.raises(TraceError, match="has 1 requests; it takes two"):
        summarize(TRACE[:1])
    at_once = [TracedRequest(5.0, 10, 0)] * 3
    found = {figure.name: figure for figure in summarize(at_once)}
    assert found["requests"].note == "in 0 s, all at once" and "gaps, CV" not in found
    assert "<svg" in page.of_trace("x", at_once, summarize(at_once))


def test_the_busiest_minutes() -> None:
    times = [0.0, 100.0, 101.0, 102.0, 103.5, 500.0]
    trace = [TracedRequest(time, 1, 1) for time in times]
    assert [r.time for r in busiest(trace, 3.0)] == [0.0, 1.0, 2.0]
    assert busiest(trace, 500.1) == trace and busiest([], 1.0) == []


def test_a_plan_names_its_replicas_and_what_each_number_costs(answer) -> None:
    chosen = answer.plan.replicas
    assert answer.plan.tried[chosen].keeps(ASKED.slo)
    assert not answer.plan.tried[chosen - 1].keeps(ASKED.slo)
    assert set(answer.bills) == set(answer.plan.tried)
    assert [bill.an_hour for bill in answer.bills.values()] == [2.0 * n for n in answer.bills]
    settings = {row[0] for row in page.setting_rows(answer)}
    assert settings == {
        "kv_tokens", "block_size", "max_num_seqs", "max_num_batched_tokens", "headroom"
    }  # fmt: skip


@pytest.mark.proof
def test_other_assumptions(answer) -> None:
    found = {variant.name: variant for variant in variants(answer)}
    assert list(found) == ["by mean values", "mean lengths", "int8 weights"]  # it names no blocks
    assert found["by mean values"].replicas == answer.plan.by_mean
    chains = [replace(r, blocks=(1,) * (r.prompt // 512 + 1)) for r in ASKED.trace]
    cached = list(variants(plan(replace(ASKED, trace=chains))))[-1]
    assert cached.name == "prefix cache" and cached.replicas <= answer.plan.replicas
    never = replace(answer, asked=replace(ASKED, slo=Slo(1e-6, 0.2), most=2))
    assert [v.replicas for v in variants(never)][1:] == [None, None]
    assert "2 replicas reach" in list(variants(never))[1].why
    with pytest.raises(CapacityError, match="2 replicas reach"):
        plan(never.asked)


class Reader(HTMLParser):
    """Which tags are open, and what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in ("meta", "path", "use", "rect", "br"):
            self.open.append(tag)
        self.fetched += [v for k, v in attrs if k in ("src", "href") and not v.startswith("#")]

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag in ("path", "use", "rect"):
            return
        assert self.open.pop() == tag


@pytest.mark.proof
def test_the_page_needs_no_other_and_fits_a_telephone(answer, tmp_path: Path) -> None:
    title = '<script>alert("x")</script>'
    text = page.of_plan(title, answer, list(variants(answer)), summarize(ASKED.trace))
    reader = Reader()
    reader.feed(text)
    assert not reader.open and not reader.fetched
    assert "<script" not in text and text.count("<svg") == 5
    assert f'<td class="n">{answer.plan.replicas}</td>' in text
    (tmp_path / "report.html").write_text(text, "utf-8")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=require("chromium"), args=["--no-sandbox"]
        )
        for width in (1400, 390):
            screen = browser.new_page(viewport={"width": width, "height": 900})
            screen.goto((tmp_path / "report.html").as_uri())
            cut = "[...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth)"
            assert screen.evaluate("document.documentElement.scrollWidth") == width
            assert set(screen.evaluate(cut)) == {0}, width
        browser.close()


def test_the_commands(tmp_path: Path) -> None:
    made = tmp_path / "made.jsonl"
    done = run("trace", "generate", "mooncake-conversation", "--seconds", 60, "--seed", 5,
               "--out", made)  # fmt: skip
    assert done.returncode == 0 and f"requests to {made}" in done.stderr
    assert len(load(made)) == 204
    packed = tmp_path / "made.jsonl.gz"
    packed.write_bytes(gzip.compress(made.read_bytes()))
    done = run("trace", "analyse", packed, "--json", "--report", tmp_path / "t.html")
    figures = json.loads(done.stdout)
    assert figures["requests"]["value"] == "204" and "<svg" in (tmp_path / "t.html").read_text()
    done = run("plan", "azure-conversation", "--minutes", 0.5, "--price", 4, "--slo", "ttft:2000",
               "--model", "qwen3-0.6b", "--report", tmp_path / "p.html")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ replicas keep the objective", done.stdout)
    assert "2,920" in done.stdout  # 4 dollars an hour, 730 hours
    assert "Capacity plan" in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trace", "analyse", "/nowhere.csv"], "/nowhere.csv cannot be read: No such file"),
        (["trace", "generate", "azure", "--out", "x"], "the shape azure is not known"),
        (["trace", "generate", "azure-code", "--out", "/nowhere/x", "--seconds", "9"],
         "/nowhere/x cannot be written"),
        (["trace", "generate", "azure-code", "--out", "x", "--rate", "0"], "0 is not above 0"),
        (["trace", "generate", "azure-code", "--out", "x", "--rate", "nan"], "nan is not above 0"),
        (["trace", "generate", "azure-code", "--out", "x", "--rate", "inf"], "finite number"),
        (["plan", "--card", "h1"], "--card h1 is not known: use h100"),
        (["plan", "--slo", "ttft:-1"], "limits are above 0 ms"),
        (["plan", "--slo", "e2e:5"], "--slo takes ttft and tpot"),
        (["plan", "--slo", "tftt:5"], "An SLO is of ttft, tpot or e2e"),
        (["plan", "nothing"], "the shape nothing is not known"),
        (["plan", "azure-code", "--card", "l4", "--dtype", "float32"], "known in 16 bits"),
        (["plan", "mooncake-conversation", "--card", "l4"], "leaves room for"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_sentence(words: list[str], says: str) -> None:
    done = run(*words)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no requests"),
        ("a,b\n1,2\n", r"has the columns \['a', 'b'\]"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.1,-4,10\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1700158623,4,10\n", "line 2"),
    ],
)
def test_files_that_are_no_trace(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TraceError, match=says):
        load(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.csv", b"a,b\n1,2,3\n", "has the columns ['None', 'a', 'b']"),
        ("t.csv", b"a,b\n1\n", "has the columns ['a', 'b']"),
        ("t.csv", b'a,b\n"' + b"x" * 200_000, "cannot be read"),
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)[:-11], "cannot be read"),
        ("t.csv.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 99, "cannot be read"),
        ("t.csv.gz", b"a,b\n1,2\n", "cannot be read"),
        ("t.jsonl", b"{\n", "line 1 is no JSON"),
    ],
)
def test_a_file_that_is_no_trace_is_one_sentence(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = run("trace", "analyse", tmp_path / name)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
