"""A server without threads and sockets, in virtual time: what a queue does, in moments (given).

For experiments: the engine is scripted, a step takes 20 ms and 1 ms for each running request, an
answer has 10 to 50 tokens. Streams and Admission are the lab's own.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from nanovllm.batching.events import EngineEvent
from nanovllm.generation.events import TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.admission import Admission
from nanovllm.serving.config import ServeConfig
from nanovllm.serving.errors import ApiError
from nanovllm.serving.load import Record
from nanovllm.serving.scripted import ScriptedEngine
from nanovllm.serving.stream import Stream
from nanovllm.serving.virtual_time import run_virtual

STEP, SAMPLE = 0.02, 0.001  # seconds of a step, and more for each sample in it
_draws = random.Random(3)
LENGTHS = [_draws.randint(10, 50) for _ in range(8192)]  # of the answer to each request
Load = Callable[["VirtualServer"], Awaitable[list[Record]]]


class VirtualServer:
    """Steps a scripted engine while it has work; `send` is a client of it.

    queue: after each step when it was, and how many requests were waiting. asked: when each
    request came, refused ones included.
    """

    def __init__(self, max_queue: int, seats: int = 8) -> None:
        self.loop = asyncio.get_running_loop()
        self.engine = ScriptedEngine(
            script=lambda prompt, index: ["word "] * LENGTHS[prompt[0] % len(LENGTHS)],
            max_num_seqs=seats,
        )
        self.admission = Admission(ServeConfig(max_queue=max_queue), seats, self.loop.time)
        self.streams: dict[int, Stream] = {}
        self.queue: list[tuple[float, int]] = []
        self.asked: list[float] = []
        self._news = asyncio.Event()

    @property
    def open_requests(self) -> int:
        """Requests that wait or run."""
        return len(self.streams)

    async def run(self) -> None:
        """Step while there is anything to do; an error reaches every reader."""
        try:
            while True:
                while not self.engine.has_unfinished:
                    self._news.clear()
                    await self._news.wait()
                running = min(self.open_requests, self.engine.max_num_seqs)
                said = self.engine.step()
                await asyncio.sleep(STEP + SAMPLE * running)
                self.queue.append((self.loop.time(), max(0, self.open_requests - running)))
                self._sort(said)
        except Exception as error:
            for stream in self.streams.values():
                stream.fail(error)

    def _sort(self, events: list[EngineEvent]) -> None:
        mine: dict[int, list[EngineEvent]] = {}
        for event in events:
            mine.setdefault(getattr(event, "request_id", -1), []).append(event)
        for request_id, heard in mine.items():
            if (stream := self.streams.get(request_id)) is not None:
                stream.put(heard)
                if stream.num_open == 0:
                    self.streams.pop(request_id)

    async def send(self, number: int, due: float) -> Record:
        """Ask, and note when each token came; a refusal is a record with an error."""
        self.asked.append(self.loop.time())
        try:
            self.admission.enter("", 1, self.open_requests)
        except ApiError as error:
            return Record(due, ended=self.loop.time(), error=str(error.status))
        request_id = self.engine.add_request([number], SamplingParams(max_tokens=50))
        stream = self.streams[request_id] = Stream([request_id])
        self._news.set()
        times: list[float] = []
        async for events in stream:
            times += [self.loop.time() for e in events if isinstance(e, TokenGenerated)]
        return Record(due, tuple(times), self.loop.time())


def simulate(load: Load, max_queue: int, seats: int = 8) -> tuple[VirtualServer, list[Record]]:
    """Put a load on a new server until all is answered; the server, and the records.

    May be called where an event loop runs already, as in a notebook.
    """

    async def main() -> tuple[VirtualServer, list[Record]]:
        server = VirtualServer(max_queue, seats)
        running = asyncio.ensure_future(server.run())
        try:
            return server, await load(server)
        finally:
            running.cancel()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run_virtual, main()).result()
