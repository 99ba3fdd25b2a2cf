"""Questions of lab 07: guess before you code; your own server answers."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from grader.student.predict import Question


def sixth() -> float:
    """The step in which the sixth of six clients has its first token, one at a time."""
    from nanovllm.generation.events import TokenGenerated
    from nanovllm.generation.params import SamplingParams
    from nanovllm.serving.async_engine import AsyncEngine
    from nanovllm.serving.scripted import ScriptedEngine

    engine = ScriptedEngine(script=lambda prompt, index: ["word "] * 20, max_num_seqs=1)
    found: list[int] = []

    def look(events: list, usage: float) -> None:
        found.append(any(isinstance(e, TokenGenerated) and e.request_id == 5 for e in events))

    async def main() -> None:
        front = AsyncEngine(engine, [look])
        front.start()
        streams = [front.submit([[i]], SamplingParams(max_tokens=20)) for i in range(6)]
        for stream in streams:
            async for _ in stream:
                pass
        await front.stop()

    with ThreadPoolExecutor(1) as pool:  # in a notebook's own thread a loop runs already
        pool.submit(asyncio.run, main()).result(60)
    return float(found.index(True) + 1)


def good(max_queue: int) -> float:
    """Good answers among those that come at 16 a second for 30 seconds."""
    from nanovllm.serving.load import Slo, arrival_times, open_loop
    from nanovllm.serving.virtual_server import simulate

    slo = Slo(ttft=1.0)
    times = [time for time in arrival_times(16.0, 600, seed=7) if time < 30]
    _, records = simulate(lambda server: open_loop(server.send, times), max_queue)
    return float(round(100 * sum(slo.met(record) for record in records) / len(records)))


def polite() -> float:
    """The p99 of TTFT that twelve users measure, of whom each waits for the answer."""
    from nanovllm.generation.latency import percentile
    from nanovllm.serving.load import closed_loop
    from nanovllm.serving.virtual_server import simulate

    _, records = simulate(lambda server: closed_loop(server.send, 600, 12), 10_000)
    return round(percentile([record.timeline.ttft for record in records], 99), 2)


QUESTIONS = [
    Question(
        key="a",
        text="Six clients come at the same moment. Each answer takes 20 steps. The server "
        "answers one client at a time. In which step does the sixth get its first token?",
        unit="step",
        tasks=(1,),
        answer=sixth,
    ),
    Question(
        key="b",
        text="A server can give 9 answers a second, and is asked for 16 a second, for 30 seconds. "
        "Its queue has no limit. What percentage of the answers begins within 1 second?",
        unit="%",
        tasks=(1, 4, 7),
        answer=lambda: good(10_000),
    ),
    Question(
        key="c",
        text="The same server with a queue of 8; who finds it full is refused at once. What "
        "percentage of all requests is now answered within 1 second?",
        unit="%",
        tasks=(1, 4, 7),
        answer=lambda: good(8),
    ),
    Question(
        key="d",
        text="Twelve users ask the same server; each sends the next request when the last answer "
        "is complete. What is the p99 of their time to first token?",
        unit="s",
        tasks=(1, 4, 7),
        answer=polite,
    ),
]
