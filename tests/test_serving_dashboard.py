"""The dashboard as a person meets it: a real server on a free port, a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from nanovllm import LLM
from nanovllm.batching.engine import Engine
from nanovllm.llm.guessing import Guessing
from nanovllm.paging.store import PagedStore
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.snapshot import kv_facts
from nanovllm.speculative.config import SpeculativeConfig
from tests.parallel_tools import spec_of, thread_engine
from tests.serving_tools import (
    CONFIG,
    FOLDER,
    MODEL,
    TOKENIZER,
    Live,
    live,
    tiny_engine,
    wait_until,
)
from tests.system_tools import require

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-quic",
)  # fmt: skip
PROMPT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
expect.set_options(timeout=10_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium; every launch has a new profile of its own."""
    path = require("chromium")
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new tab that has nothing stored, and must not log an error of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab, errors = context.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    yield tab
    context.close()
    assert errors == []


def slow_engine(seconds: float = 0.03, seats: int = 3, num_blocks: int = 200) -> Engine:
    """Lab 05's store under a model whose steps last long enough to be watched."""
    engine = tiny_engine(seats, store=PagedStore(CONFIG, num_blocks, block_size=4))
    step = engine.step

    def slowly() -> list[Any]:
        time.sleep(seconds)
        return step()

    engine.step = slowly
    return engine


class Users:
    """Clients that wait for their answers in threads of their own."""

    def __init__(self, server: Live) -> None:
        self.server = server
        self.pool = ThreadPoolExecutor(8)

    def ask(self, **body: Any) -> Future[dict[str, Any]]:
        sent = {"prompt": PROMPT, "max_tokens": 240, "ignore_eos": True, "seed": 1} | body
        before = self.server.server.engine.num_open

        def post() -> dict[str, Any]:
            url = f"{self.server.url}/v1/completions"
            return httpx.post(url, json=sent, timeout=120).json()

        answer = self.pool.submit(post)
        engine = self.server.server.engine
        wait_until(lambda: engine.num_open > before or answer.done())  # in this order
        assert not answer.done() or "choices" in answer.result(), answer.result()
        return answer

    def leave(self) -> None:
        """Nobody waits any more."""
        engine = self.server.server.engine
        names = {stream.name for stream in dict(engine.streams).values()}
        for name in names:
            httpx.post(f"{self.server.url}/dashboard/cancel", json={"id": name}, timeout=60)
        self.pool.shutdown()


@pytest.fixture
def busy() -> Iterator[tuple[Live, list[Future]]]:
    """Three seats: a request of two samples that share their prompt, one more, one in the queue."""
    with live(slow_engine()) as server:
        users = Users(server)
        answers = [users.ask(n=2), users.ask(prompt=PROMPT[::-1]), users.ask(prompt=[5] * 6)]
        yield server, answers
        users.leave()


def test_shows_who_runs_who_waits_and_whose_blocks(busy, page: Page) -> None:
    server, _ = busy
    page.goto(server.url + "/dashboard")
    expect(page.locator("#status")).to_have_text("live")
    expect(page.locator("#model")).to_have_text("tiny")
    expect(page.locator("#running tr")).to_have_count(3)
    expect(page.locator("#queue li")).to_have_count(1)
    expect(page.locator("#queue li")).to_contain_text("6 tok")
    names = list(dict.fromkeys(s.name for s in server.server.engine.streams.values()))
    rows = page.locator("#running tr").evaluate_all("rows => rows.map(r => r.dataset.row)")
    assert rows == [f"{names[0]} 0", f"{names[0]} 1", f"{names[1]} 0"]
    expect(page.locator("#running tr").nth(2)).to_contain_text("10 / 10")
    expect(page.locator("#tiles .card", has_text="Running")).to_contain_text("of 3 seats")
    wait_until(lambda: page.evaluate("owners().size > 20 && rates.length > 1"))
    found = page.evaluate(LOOK)
    assert found["shared"], "two samples share the blocks of their prompt"
    assert found["wrong"] == []
    assert found["held"] == found["told"], "the table counts the blocks that the map draws"
    assert "2 shared" in page.locator("#blocks").get_attribute("aria-label")
    expect(page.locator("#batch-note")).to_contain_text("0 + 3 of 512")
    expect(page.locator("#guesses-card")).to_be_hidden()
    expect(page.locator("#ranks-card")).to_be_hidden()


def test_a_click_tells_where_the_time_of_a_request_went(busy, page: Page) -> None:
    server, answers = busy
    page.goto(server.url + "/dashboard")
    waits = list(server.server.engine.streams.values())[-1].name
    expect(page.locator("#one")).to_be_hidden()
    page.locator("#running .name").first.click()
    first = page.locator("#one-name").inner_text().removeprefix("Request ")
    expect(page.locator("#one-fall")).to_contain_text("decode from")
    answers[-1].result()
    page.get_by_role("button", name=f"Where the time of {waits} went").last.click()
    expect(page.locator("#one-name")).to_have_text(f"Request {waits}")
    expect(page.locator("#one-note")).to_contain_text("finished; 240 tokens")
    told = page.locator("#one-fall > :nth-child(3n + 1)").all_inner_texts()
    assert [line.split()[0] for line in told] == ["queued", "prefill", "decode"]
    assert first != waits
    widths = page.locator("#one-fall .track i:last-child").evaluate_all(
        "parts => parts.map(p => parseFloat(p.style.width))"
    )
    assert sum(widths) == pytest.approx(100, abs=0.1)
    page.get_by_role("button", name="1 hour").click()
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#percentiles tr").first).to_contain_text("4")  # samples


def test_shows_a_row_for_each_rank(page: Page) -> None:
    engine = thread_engine(spec_of(FOLDER, 2, 1, blocks=200), tokenizer=TOKENIZER)
    with live(engine) as server:
        page.goto(server.url + "/dashboard")
        expect(page.locator("#ranks tr")).to_have_count(2)
        sent = server.server.engine.engine.rank_rows()[1].messages
        httpx.post(f"{server.url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 4})
        wait_until(lambda: not server.server.engine.streams)  # from here on no row changes
        row = server.server.engine.engine.rank_rows()[1]
        assert row.messages > sent
        expect(page.locator("#ranks tr").nth(1).locator("td")).to_have_text([
            "1", f"{row.weight_bytes / 1e6:.1f} MB", f"{row.kv_bytes / 1e6:.1f} MB",
            str(row.messages), str(row.last_call),
        ])  # fmt: skip
    engine.executor.close()


# Reads the colour of every block off the canvas, at the top left of its square, and compares it
# with the swatch of the row that holds it. All in one go, so that no poll comes between.
LOOK = """() => {
  const canvas = $("blocks"), { size, columns } = layout(canvas.clientWidth);
  const pen = canvas.getContext("2d"), spot = new OffscreenCanvas(1, 1).getContext("2d");
  const rgb = (colour) => {
    spot.fillStyle = colour;
    spot.fillRect(0, 0, 1, 1);
    return [...spot.getImageData(0, 0, 1, 1).data].join();
  };
  const swatches = {};
  for (const tr of $("running").children)
    swatches[tr.dataset.row.split(" ")[0]] = rgb(tr.querySelector(".key").style.background);
  const free = rgb(css("--free")), held = owners(), shared = [], wrong = [];
  for (let block = 0; block < state.kv.num_blocks; block += 1) {
    const x = (block % columns) * size + 3, y = Math.floor(block / columns) * size + 3;
    const seen = [...pen.getImageData(x, y, 1, 1).data].join();
    const who = held.get(block);
    if (who && who.length > 1) shared.push(block);
    if (state.kv.cached_blocks.includes(block)) continue;
    if (seen !== (who ? swatches[who[0].id] : free)) wrong.push([block, seen]);
  }
  const cells = [...$("running").children].map((tr) => Number(tr.children[3].textContent));
  const told = cells.reduce((a, b) => a + b);
  return { shared, wrong, told, held: [...held.values()].flat().length };
}"""


def test_cancel_ends_a_request_for_its_client_and_lets_the_next_one_in(busy, page: Page) -> None:
    server, answers = busy
    page.goto(server.url + "/dashboard")
    row = page.locator("#running tr").nth(2)
    name = row.get_attribute("data-row").split()[0]
    row.get_by_role("button", name=f"Cancel request {name}").click()
    choice = answers[1].result(60)["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", "cancelled")
    assert not answers[0].done()
    expect(page.locator("#said")).to_have_text(f"Request {name} is cancelled.")
    expect(page.locator(f'#running [data-row="{name} 0"]')).to_have_count(0)
    expect(page.locator("#queue li")).to_have_count(0)  # the one that waited runs now
    expect(page.locator("#no-queue")).to_be_visible()
    expect(page.locator("#running tr")).to_have_count(3)
    page.locator("#running").get_by_role("button", name="Cancel").first.focus()
    page.keyboard.press("Enter")
    assert len(answers[0].result(60)["choices"]) == 2
    expect(page.locator("#running tr")).to_have_count(1)
    expect(page.locator("#totals")).to_contain_text("3 aborted")


def test_blocks_that_are_free_but_cached_are_told_apart(page: Page) -> None:
    with live(slow_engine(0)) as server:
        users = Users(server)
        for _ in range(2):
            users.ask(prompt=list(range(20, 60)), max_tokens=2).result(60)
        page.goto(server.url + "/dashboard")
        facts = kv_facts(server.server.engine.engine.store)
        cached = facts["cached_blocks"]
        assert len(cached) == 10 and facts["prefix"]["hits"] == 36
        assert server.metric("prefix_cache_hits_total") == 36
        expect(page.locator("#kv-note")).to_contain_text(
            "0 of 200 blocks held, 0 shared, 10 cached"
        )
        expect(page.locator("#tiles .card", has_text="Prefix")).to_contain_text("45%")
        page.locator("#blocks").focus()
        page.keyboard.press("Home")
        for _ in range(cached[0]):
            page.keyboard.press("ArrowRight")
        told = page.locator("#about-block")
        expect(told).to_have_text(f"Block {cached[0]}: free, kept for its prefix")
        page.keyboard.press("End")
        expect(told).to_have_text("Block 199: free")
        page.keyboard.press("Escape")
        expect(told).to_contain_text("arrow keys")


def test_bars_tell_which_guesses_stand(page: Page) -> None:
    kind = Guessing(SpeculativeConfig(method="ngram", num_speculative_tokens=3), None).on(Engine)
    store = PagedStore(CONFIG, 200, block_size=4)
    with live(kind(MODEL, tokenizer=TOKENIZER, store=store)) as server:
        page.goto(server.url + "/dashboard")
        expect(page.locator("#guesses-note")).to_have_text("nobody guessed lately")
        users = Users(server)
        users.ask(logit_bias={"5": 50, "6": 50}, max_tokens=100).result(60)  # says two tokens
        counted = "spec_decode_num_accepted_tokens"
        runs = server.metric("spec_decode_num_drafts_total")
        expect(page.locator("#guesses-note")).to_contain_text(
            f"{1 + server.metric(f'{counted}_total') / runs:.2f} tokens a run"
        )
        made = [one for one, _ in page.evaluate("state.guesses")]
        stood = [server.metric(f"{counted}_per_pos_total", position=str(i)) for i in range(3)]
        assert made[0] == runs and stood[0] > stood[2] > 0
        label = page.locator("#guesses").get_attribute("aria-label")
        assert [int(share) for share in re.findall(r"place \d (\d+)%", label)] == [
            pytest.approx(100 * a / b, abs=0.51) for a, b in zip(stood, made, strict=True)
        ]
        shares = page.evaluate(BARS)
        assert shares == pytest.approx([a / b for a, b in zip(stood, made, strict=True)], abs=0.03)
        users.leave()


# How much of the middle of each bar has the colour of what stood, read off the canvas.
BARS = """() => {
  const canvas = $("guesses"), pen = canvas.getContext("2d"), good = css("--good");
  const rgb = [1, 3, 5].map((at) => parseInt(good.slice(at, at + 2), 16)).join();
  const high = canvas.height - 20;  // the axis leaves 4 below and 16 above
  return state.guesses.map((_, place) => {
    const x = Math.round(((place + 0.5) * canvas.width) / state.most_guesses);
    let count = 0;
    for (let y = 0; y < canvas.height; y += 1)
      count += [...pen.getImageData(x, y, 1, 1).data].slice(0, 3).join() === rgb;
    return count / high;
  });
}"""


def test_memory_swap_and_budget_are_told_in_bytes_and_tokens(page: Page) -> None:
    llm = LLM(
        enforce_eager=True, swap_space=0.01, adaptive_token_budget=True, max_num_seqs=4,
        max_num_batched_tokens=64, num_gpu_blocks_override=24, max_model_len=300,
    )  # fmt: skip
    swapping = llm.runner.engine.store.swapping
    swapping.pays = lambda num_blocks, num_tokens: True
    with live(llm.runner.engine) as server:
        page.goto(server.url + "/dashboard")
        expect(page.locator("#memory-legend")).to_contain_text("weights 15 MB")
        expect(page.locator("#ended-note")).to_have_text("none in the last 30 s")
        users = Users(server)
        answers = [users.ask(prompt=[20 + i] * 20 + PROMPT, max_tokens=100) for i in range(4)]
        assert all("choices" in answer.result(60) for answer in answers)
        assert swapping.bytes_out > 0
        expect(page.locator("#tiles .card", has_text="Swapped")).to_contain_text(
            f"{swapping.bytes_out / 1e3:.0f} kB out"
        )
        expect(page.locator("#ended-note")).to_contain_text("590 kB on average, at most 590 kB")
        wait_until(lambda: len(page.evaluate("state.ended_kv")) == 4)
        facts = page.evaluate("state.memory")
        assert facts["weights"] == sum(p.nbytes for p in llm.model.parameters())
        assert facts["kv"] == 24 * 16 * llm.kv_bytes_per_token
        decisions = page.evaluate("state.budget.decisions")
        expect(page.locator("#budget-note")).to_contain_text("of 64")
        assert sum(decisions.values()) == page.evaluate("state.budget.points.length") > 0
        assert server.metric("request_kv_bytes_count") == 4
        assert server.metric("request_kv_bytes_sum") == 4 * 9 * 16 * llm.kv_bytes_per_token
        users.leave()


def test_a_row_tells_its_bytes_and_its_share_from_the_prefix_cache(page: Page) -> None:
    with live(slow_engine()) as server:
        users = Users(server)
        users.ask(prompt=list(range(20, 60)), max_tokens=2).result(60)
        users.ask(prompt=list(range(20, 60)), max_tokens=200)
        page.goto(server.url + "/dashboard")
        cells = page.locator("#running tr td")
        expect(cells.nth(5)).to_have_text("90%")  # 36 of 40 tokens: whole blocks of 4
        wait_until(lambda: page.evaluate("state.running[0]?.blocks.length > 12"))
        state = page.evaluate("state")  # one picture
        [row], store = state["running"], server.server.engine.engine.store
        assert row["kv_bytes"] == len(row["blocks"]) * store.nbytes // store.num_blocks
        unused = len(row["blocks"]) * 4 - row["computed_tokens"]
        assert state["fragmentation"] == pytest.approx(unused / (len(row["blocks"]) * 4))
        users.leave()


def test_asks_for_the_key_and_keeps_it_for_this_tab_only(browser: Browser) -> None:
    with live(slow_engine(0), api_keys=("s3cret",)) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url + "/dashboard")
        expect(page.locator("#status")).to_have_text("API key needed")
        page.get_by_label("API key").fill("wrong")
        page.get_by_role("button", name="Use").click()
        expect(page.locator("#banner")).to_contain_text("The one given is not known.")
        page.get_by_label("API key").fill("s3cret")
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text("live")
        expect(page.locator("#banner")).to_be_hidden()
        page.reload()
        expect(page.locator("#status")).to_have_text("live")
        assert "s3cret" not in page.url and page.evaluate("localStorage.length") == 0
        other = context.new_page()
        other.goto(server.url + "/dashboard")
        expect(other.locator("#status")).to_have_text("API key needed")
        context.close()


def test_stops_when_hidden_and_says_when_the_server_is_gone(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with live(slow_engine(0)) as server:
        page.goto(server.url + "/dashboard")
        expect(page.locator("#status")).to_have_text("live")
        page.evaluate(HIDE, True)
        expect(page.locator("#status")).to_have_text("paused")
        page.wait_for_timeout(300)  # what was under way
        before = len(asked)
        page.wait_for_timeout(1500)
        assert len(asked) == before
        page.evaluate(HIDE, False)
        expect(page.locator("#status")).to_have_text("live")
        assert len(asked) > before
    expect(page.locator("#status")).to_have_text("server gone")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    assert page.evaluate("getComputedStyle($('live')).opacity") < "0.5"
    paths = {url.removeprefix(server.url) for url in asked}
    assert {url.partition("?")[0] for url in paths} == {
        "/dashboard",
        "/dashboard/state",
        "/dashboard/history",
    }, "one file, and nothing from elsewhere"


HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_what_the_server_says_is_text(page: Page) -> None:
    evil = '<img src=x onerror="window.hit = 1"><script>window.hit = 1</script>'
    with Live(slow_engine(), ServeConfig(model_name=evil)) as server:
        page.goto(server.url + "/dashboard")
        expect(page.locator("#model")).to_have_text(evil)
        assert page.locator("main img, header img").count() == 0
        assert page.evaluate("window.hit") is None
        policy = httpx.get(server.url + "/dashboard", timeout=60).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_can_be_read_in_both_schemes_and_on_a_phone(browser: Browser, scheme: str) -> None:
    with live(slow_engine()) as server:
        users = Users(server)
        users.ask(n=3)
        page = browser.new_page(color_scheme=scheme, viewport={"width": 390, "height": 800})
        page.goto(server.url + "/dashboard")
        expect(page.locator("#running tr")).to_have_count(3)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(CONTRAST) == []
        unnamed = "[...document.querySelectorAll('button,canvas,input')].filter(e => !(e.ariaLabel"
        unnamed += " || e.labels?.length || e.textContent)).map(e => e.id)"
        assert page.evaluate(unnamed) == []
        page.close()
        users.leave()


# WCAG's contrast of every colour that text has, on every ground that it has.
CONTRAST = """() => {
  const light = (name) => {
    const value = parseInt(css(name).slice(1), 16);
    return [16, 8, 0].map((bits) => ((value >> bits) & 255) / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
      .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  };
  const poor = [];
  for (const ink of ["--ink", "--soft", "--good", "--warn", "--bad"])
    for (const ground of ["--page", "--card"]) {
      const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
      if ((a + 0.05) / (b + 0.05) < 4.5) poor.push([ink, ground, (a + 0.05) / (b + 0.05)]);
    }
  return poor;
}"""
