"""Hidden scenarios of lab 07."""

from grader.checks.scenarios import scenario


def _numbers(rng, low, high, size):
    return [int(value) for value in rng.integers(low, high, size=size)]


def _collect(aiter):
    import asyncio

    async def main():
        return [item async for item in aiter]

    return asyncio.run(main())


@scenario(task=1)
def a_busy_front(nanovllm, rng):
    """Notes, steps and streams in an order that the dice choose."""
    import asyncio
    import threading

    from nanovllm.generation.errors import RequestError
    from nanovllm.generation.events import TokenGenerated
    from nanovllm.generation.params import SamplingParams
    from nanovllm.serving.async_engine import AsyncEngine
    from nanovllm.serving.scripted import ScriptedEngine

    lengths = _numbers(rng, 2, 9, 40)
    engine = ScriptedEngine(
        script=lambda prompt, index: [
            f"{prompt[0]}.{index}.{k} " for k in range(lengths[prompt[0]])
        ],
        max_num_seqs=int(rng.integers(2, 7)),
    )
    streams, story, delivered = [], [], []
    front = AsyncEngine(engine, [lambda events, usage: delivered.append(len(events))])

    def pace(loop):
        """After each step the engine's thread waits until the loop has taken it in, and acted."""
        plain, mine = loop.call_soon_threadsafe, threading.get_ident()

        def call_soon_threadsafe(function, *args, **options):
            if threading.get_ident() == mine:
                return plain(function, *args, **options)
            done = threading.Event()

            def run():
                before = len(delivered)
                try:
                    function(*args)
                    if before < len(delivered) < 12:
                        act()
                finally:
                    done.set()

            handle = plain(run, **options)
            done.wait(10)
            return handle

        loop.call_soon_threadsafe = call_soon_threadsafe

    def act():
        first = _numbers(rng, 0, 40, int(rng.integers(1, 4)))
        prompts = [[number] for number in first]
        if rng.random() < 0.2:
            prompts.append([])
        try:
            n = int(rng.integers(1, 4))
            streams.append(front.submit(prompts, SamplingParams(n=n), name=str(len(streams))))
        except RequestError:
            story.append("refused")
        if rng.random() < 0.3 and streams:
            gone = streams[int(rng.integers(len(streams)))]
            front.cancel(gone, ["timeout", "disconnected"][int(rng.integers(2))])

    async def read(stream):
        texts = {}
        async for events in stream:
            for event in events:
                if isinstance(event, TokenGenerated):
                    choice = str(stream.choice(event))
                    texts[choice] = texts.get(choice, "") + event.text
        return texts

    async def main():
        pace(asyncio.get_running_loop())
        act()
        if not engine.has_unfinished:
            front.submit([[1]], SamplingParams())
        front.start()
        while await front.call(lambda engine: engine.has_unfinished):
            await asyncio.sleep(0.001)
        found = [await read(stream) for stream in streams]
        left = sorted(front.streams)
        await front.stop()
        return found, left

    texts, left = asyncio.run(asyncio.wait_for(main(), 60))
    return {
        "texts": texts,
        "reasons": [stream.reason for stream in streams],
        "aborted": sorted(set(engine.aborted)),
        "delivered": delivered,
        "story": story,
        "left": left,
    }


@scenario(task=1)
def streams_that_end_badly(nanovllm, rng):
    import asyncio

    from nanovllm.generation.events import TokenGenerated
    from nanovllm.serving.async_engine import AsyncEngine
    from nanovllm.serving.errors import ApiError
    from nanovllm.serving.scripted import ScriptedEngine
    from nanovllm.serving.stream import Stream

    async def main():
        found = []
        for _ in range(6):
            dies = rng.random() < 0.7
            engine = ScriptedEngine(faults={1: ValueError("bad luck")})
            front = AsyncEngine(engine)
            stream = Stream([3, 4], n=2)
            front.streams = {3: stream, 4: stream}
            for _ in range(int(rng.integers(0, 4))):
                stream.put([TokenGenerated(3, 0, 1, "x", 0.0)] * int(rng.integers(1, 4)))
            if dies:
                engine.add_request([1])
            front.start()
            if not dies:
                await front.stop()
            for _ in range(5000):
                if front.error is not None:
                    break
                await asyncio.sleep(0.001)
            seen = []
            try:
                async for events in stream:
                    seen.append(len(events))
            except ApiError as error:
                seen.append([type(error).__name__, "bad luck" in str(error)])
            found.append([seen, len(front.streams), stream.ended, stream.num_open])
        return found

    return {"ends": asyncio.run(main())}


@scenario(task=2)
def random_requests(nanovllm, rng):
    from dataclasses import asdict

    from nanovllm.serving.failures import api_error
    from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest
    from nanovllm.serving.sampling import sampling_params

    pools = {
        "n": [None, 1, 3], "temperature": [None, 0, 0.5, 3.0], "top_p": [None, 0.25, 0.0],
        "top_k": [None, 0, 5], "seed": [None, 0, 9], "stop": [None, "a", ["b", "c"]],
        "max_tokens": [None, 0, 1, 12, 40, 60], "min_tokens": [None, 0, 3],
        "logit_bias": [None, {"7": 3.0}, {"x": 1.0}], "ignore_eos": [None, True, False],
    }  # fmt: skip
    found = []
    for _ in range(60):
        given = {name: pool[int(rng.integers(len(pool)))] for name, pool in pools.items()}
        prompt = int(rng.integers(1, 70))
        if rng.random() < 0.5:
            request = CompletionRequest(
                prompt="a", logprobs=[None, 0, 4][int(rng.integers(3))], **given
            )
        else:
            request = ChatCompletionRequest(
                messages=[{"role": "user", "content": "a"}],
                max_completion_tokens=[None, 5, 50][int(rng.integers(3))],
                logprobs=[None, True, False][int(rng.integers(3))],
                top_logprobs=[None, 0, 2][int(rng.integers(3))],
                **given,
            )
        try:
            params = asdict(sampling_params(request, prompt, 64))
            params["logit_bias"] = sorted((params["logit_bias"] or {}).items())
            found.append(
                {name: list(v) if isinstance(v, tuple) else v for name, v in params.items()}
            )
        except Exception as error:
            answer = api_error(error)
            found.append([answer.status, answer.type, answer.param])
    return {"params": found}


@scenario(task=2)
def usage_of_random_answers(nanovllm, rng):
    from nanovllm.serving.deltas import Delta
    from nanovllm.serving.errors import NotFoundError
    from nanovllm.serving.failures import check_model
    from nanovllm.serving.writers import CompletionWriter

    found = []
    for _ in range(8):
        n = int(rng.integers(1, 4))
        prompts = [[7] * size for size in _numbers(rng, 1, 30, int(rng.integers(1, 4)))]
        writer = CompletionWriter("id", "m", 0, None, prompts, n, include_usage=True)
        for _ in range(int(rng.integers(0, 12))):
            size = int(rng.integers(0, 4))
            writer.count(Delta(0, ["", "a"][int(rng.integers(2))], [5] * size))
        found.append(writer.usage()["usage"])
    names = []
    for asked in (None, "a", "b", "", "A"):
        try:
            check_model(asked, "a")
            names.append("served")
        except NotFoundError as error:
            names.append(error.status)
    return {"usage": found, "names": names}


@scenario(task=3)
def events_cut_anywhere(nanovllm, rng):
    from nanovllm.serving.sse import EventReader, frame

    letters = list('ab: \n\r{}"é漢🙂')
    sent = b""
    for _ in range(25):
        text = "".join(letters[i] for i in _numbers(rng, 0, len(letters), int(rng.integers(1, 9))))
        sent += frame({"text": text})
        if rng.random() < 0.3:
            sent += [b": note\n\n", b"event: x\ndata: 1\ndata: 2\r\n\r\n"][int(rng.integers(2))]
    cuts = sorted(set(_numbers(rng, 1, len(sent), 40)))
    reader, found = EventReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found.append(reader.push(sent[start:end]))
    return {"sent": sent, "found": found}


@scenario(task=3)
def random_streams(nanovllm, rng):
    from nanovllm.batching.events import Aborted, Failed
    from nanovllm.generation.events import Completion, Finished, TokenGenerated
    from nanovllm.serving.deltas import merge
    from nanovllm.serving.stream import Stream
    from nanovllm.serving.streaming import event_stream
    from nanovllm.serving.writers import ChatWriter, CompletionWriter

    found = []
    for _ in range(10):
        n = int(rng.integers(1, 3))
        stream = Stream([4, 9], n)
        stream.reason = [None, "timeout", "cancelled"][int(rng.integers(3))]
        living = [(request_id, index) for request_id in (4, 9) for index in range(n)]
        steps = []
        while living:
            events = []
            for who in list(living):
                draw = rng.random()
                if draw < 0.6:
                    text = ["", "a ", "b"][int(rng.integers(3))]
                    events.append(TokenGenerated(*who, int(rng.integers(50)), text, 0.0))
                elif draw < 0.8:
                    reason, why = [("stop", None), ("length", None), ("stop", "X")][
                        int(rng.integers(3))
                    ]
                    done = Completion(who[1], (1,), "", reason, why)
                    events.append(Finished(*who, done, 0.0))
                    living.remove(who)
                elif draw < 0.9:
                    events.append(Aborted(*who, (1,), "all", 0.0))
                    living.remove(who)
                elif draw < 0.92:
                    events.append(Failed(*who, ValueError("luck"), 0.0))
                    living.remove(who)
            steps.append(events)

        async def merged(stream=stream, steps=steps):
            for events in steps:
                yield merge(stream, events)

        kind = [ChatWriter, CompletionWriter][int(rng.integers(2))]
        usage = bool(rng.integers(2))
        writer = kind("id", "m", 0, None, [[1], [2]], n, include_usage=usage)
        found.append(_collect(event_stream(merged(), writer)))
    return {"pieces": found}


@scenario(task=4)
def keys_and_buckets(nanovllm, rng):
    from nanovllm.generation.latency import ManualClock
    from nanovllm.serving.admission import Admission, authorize
    from nanovllm.serving.config import ServeConfig
    from nanovllm.serving.errors import ApiError

    keys = ("k1", "k22", "k")
    headers = ["Bearer k1", "Bearer k", "bearer k22", "Bearer k2", "Token k1", "Bearer", None]
    told = []
    for path in ("/v1/models", "/metrics", "/health/x", "/version"):
        for header in headers:
            try:
                told.append(authorize(path, header, keys))
            except ApiError as error:
                told.append(error.status)
    clock = ManualClock(float(rng.uniform(0, 100)))
    config = ServeConfig(
        api_keys=keys, max_queue=int(rng.integers(0, 9)), rate_limit=int(rng.integers(10, 200))
    )
    admission = Admission(config, int(rng.integers(1, 9)), clock)
    story = []
    for step in range(80):
        clock.advance(float(rng.uniform(0, 12)))
        key = keys[int(rng.integers(3))]
        admission.draining = step > 70
        try:
            admission.enter(key, int(rng.integers(1, 6)), int(rng.integers(0, 12)))
            admission.charge(key, int(rng.integers(0, 120)))
            story.append("in")
        except ApiError as error:
            story.append([error.status, error.headers.get("Retry-After")])
        story.append(round(admission.buckets[key].level, 6))
    return {"told": told, "story": story}


@scenario(task=4)
def timers(nanovllm, rng):
    import asyncio

    from nanovllm.serving.deadline import deadline, drain
    from nanovllm.serving.stream import Stream
    from nanovllm.serving.virtual_time import run_virtual

    works = [float(x) for x in rng.uniform(0.5, 20.0, size=12).round(2)]
    limits = [None if x > 14 else float(x) for x in rng.uniform(1.0, 18.0, size=12).round(2)]
    patience = round(float(rng.uniform(3.0, 12.0)), 2)

    async def main():
        loop, told = asyncio.get_running_loop(), []

        def cancel(stream, reason):
            told.append([stream.name, reason, round(loop.time(), 3)])

        async def one(i):
            with deadline(loop, limits[i], cancel, Stream([i], name=str(i))):
                await asyncio.sleep(works[i])

        await asyncio.gather(*(one(i) for i in range(12)))
        begun = loop.time()
        ends = {Stream([i], name=str(i)): begun + works[i] for i in range(12)}
        cut = await drain(
            lambda: [s for s, end in ends.items() if loop.time() < end], cancel, patience, tick=0.25
        )
        return {"told": told, "cut": cut, "took": round(loop.time() - begun, 3)}

    return run_virtual(main())


@scenario(task=5)
def metrics_of_a_real_run(nanovllm, rng):
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.batching.policies import RoundRobin
    from nanovllm.generation.latency import ManualClock
    from nanovllm.generation.params import SamplingParams
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.serving.metrics import Metrics

    shape = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 40, qk_norm=True, eos_token_ids=(2,))
    clock = ManualClock()
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=9, policy=RoundRobin(2))
    engine = Engine(dummy_model(shape, seed=int(rng.integers(99))), config, clock=clock)
    metrics, gauges = Metrics("m"), []
    for i in range(10):
        params = SamplingParams(max_tokens=int(rng.integers(1, 9)), n=int(rng.integers(1, 3)))
        engine.add_request(_numbers(rng, 3, 47, int(rng.integers(1, 12))), params, seed=i)
    while engine.has_unfinished:
        if rng.random() < 0.15:
            engine.abort(int(rng.integers(10)))
        clock.advance(float(rng.uniform(0.05, 2.0)))
        metrics.observe(engine.step(), 1 - engine.store.free_tokens / engine.store.total_tokens)
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        labels = {"model_name": "m", "engine": "0"}
        registry = metrics.registry.registry
        gauges.append([registry.get_sample_value(f"nanovllm:{x}", labels) for x in names])
    samples = [
        [sample.name, sorted(sample.labels.items()), round(sample.value, 6)]
        for family in metrics.registry.registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return {"gauges": gauges, "samples": samples}


@scenario(task=5)
def metrics_of_cached_prompts(nanovllm, rng):
    from nanovllm.batching.events import Admitted, ChunkRun, Preempted, Queued, Stepped
    from nanovllm.serving.metrics import Metrics

    metrics = Metrics("m")
    metrics.observe([Queued(i, j, 0.0) for i in range(6) for j in range(2)], 0.0)
    hits = []
    for step in range(30):
        chunks = tuple(
            ChunkRun(i, int(rng.integers(2)), int(rng.integers(0, 40)), int(rng.integers(1, 9)))
            for i in _numbers(rng, 0, 6, int(rng.integers(0, 4)))
        )
        moved = int(rng.integers(6)), int(rng.integers(2)), float(step)
        move = (Admitted, Preempted)[int(rng.integers(2))](*moved)
        metrics.observe([move, Stepped(chunks, 1, 1, 64, 9, 0.0, 1.0)], 0.5)
        labels = {"model_name": "m", "engine": "0"}
        names = ("prefix_cache_hits_total", "num_preemptions_total", "num_requests_running",
                 "iteration_tokens_total_sum", "request_queue_time_seconds_sum")  # fmt: skip
        registry = metrics.registry.registry
        hits.append([registry.get_sample_value(f"nanovllm:{x}", labels) for x in names])
    return {"counts": hits}


@scenario(task=6)
def states_of_a_run(nanovllm, rng):
    from types import SimpleNamespace

    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.batching.request import Priority
    from nanovllm.generation.latency import ManualClock
    from nanovllm.generation.params import SamplingParams
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.serving.monitor import Monitor
    from nanovllm.serving.snapshot import blocks_of, engine_state

    shape = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 40, qk_norm=True, eos_token_ids=(2,))
    clock = ManualClock(float(rng.uniform(0, 50)))
    policy = ["sjf", "priority", "fcfs"][int(rng.integers(3))]
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=7, policy=policy)
    engine = Engine(dummy_model(shape, seed=int(rng.integers(99))), config, clock=clock)
    monitor, states = Monitor(clock, window=float(rng.uniform(3, 9))), []
    for i in range(8):
        params = SamplingParams(max_tokens=int(rng.integers(1, 9)), n=1 + i % 2)
        priority = list(Priority)[int(rng.integers(3))]
        size = int(rng.integers(1, 12))
        engine.add_request(_numbers(rng, 3, 47, size), params, seed=i, priority=priority)
    for step in range(60):
        if step == 5:
            engine.abort(int(rng.integers(8)))
        clock.advance(float(rng.uniform(0.05, 1.5)))
        monitor.observe(engine.step(), 0.0)
        if step % 4 == 0:
            states.append(engine_state(engine, {1: "one", 3: "three"}))
            states.append(monitor.recent())
    first, second = object(), object()
    manager = SimpleNamespace(block_ids=lambda request: [3, 1] if request is first else [])
    paged = SimpleNamespace(manager=manager)
    slots = SimpleNamespace(slot_of={second: 0})
    blocks = [blocks_of(s, r) for s in (paged, slots, object()) for r in (first, second)]
    return {"states": states, "blocks": blocks, "open": len(monitor.lines)}


@scenario(task=7)
def random_load(nanovllm, rng):
    from nanovllm.serving.load import Record, Slo, arrival_times, goodput

    rate, shape = float(rng.uniform(0.2, 30)), float(rng.uniform(0.2, 5))
    times = arrival_times(rate, 40, burstiness=shape, seed=int(rng.integers(1000)))
    records = []
    for due in times:
        tokens = due + rng.uniform(0.01, 0.5, size=int(rng.integers(0, 8))).cumsum()
        error = "503" if rng.random() < 0.2 else None
        ended = float(tokens[-1]) if len(tokens) else due + 0.5
        records.append(Record(due, tuple(map(float, tokens)), ended, 5, error))
    slos = [
        Slo(*(None if x < 0.1 else float(x) for x in rng.uniform(0, 1.5, size=3)))
        for _ in range(12)
    ]
    return {
        "times": times,
        "met": [[slo.met(record) for record in records] for slo in slos],
        "goodput": [goodput(records, slo) for slo in slos],
        "nobody": goodput([], Slo()),
    }
