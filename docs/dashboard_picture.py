"""The dashboard under load: a real server with the bundled model, clients, and a browser."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

from docs.browser import chromium
from grader.course.errors import LabError
from grader.course.paths import ROOT

CLIENTS, SEATS, BLOCKS = 24, 10, 160
WARM = 12  # seconds of load before the picture
WIDTH, HEIGHT = 1280, 1000
QUESTIONS = (
    "Tell me a story about a cat.", "Tell me a story about a brave dog.",
    "What is the capital of France?", "Tell me a story about a small boat.",
    "What is 12 plus 7?",
)  # fmt: skip
SYSTEM = "You are a kind helper. You answer in short words, and you tell long stories."


def take(path: Path) -> None:
    """Write the picture; raises LabError where there is no Chromium."""
    program = chromium()
    with _server() as url, ThreadPoolExecutor(CLIENTS) as pool, sync_playwright() as driver:
        end = time.monotonic() + WARM + 20
        asking = [pool.submit(_ask, url, number, end) for number in range(CLIENTS)]
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(f"{url}/dashboard")
        page.wait_for_timeout(1000 * WARM)
        page.screenshot(path=path)
        browser.close()
        for one in asking:
            one.result()


def _ask(url: str, client: int, end: float) -> None:
    """One client: the next question as soon as the last is answered."""
    number = client
    while time.monotonic() < end:
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]},
        ]
        body = {"messages": messages, "max_tokens": 150 + 7 * client, "seed": number,
                "temperature": 0.9, "ignore_eos": True}  # fmt: skip
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).raise_for_status()
        number += CLIENTS


@contextmanager
def _server() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "nanovllm.cli", "serve", "--port", str(port), "--code"]
    words += ["reference", "--max-num-seqs", str(SEATS), "--num-gpu-blocks-override", str(BLOCKS)]
    process = subprocess.Popen([*words, "--enforce-eager"], cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        try:
            httpx.get(f"{url}/health", timeout=5).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise LabError("`nanovllm serve` did not start; it says above why.")
