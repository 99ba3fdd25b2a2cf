"""Hidden scenarios of lab 07: other ways through the same contracts than the checks take."""

from grader.checks.scenarios import scenario


def _numbers(rng, low, high, size):
    return [int(value) for value in rng.integers(low, high, size=size)]


def _events(aiter):
    """The data of all events of a stream of bytes, however it is cut into pieces."""
    import asyncio
    import json

    async def main():
        return b"".join([piece async for piece in aiter])

    found = []
    for event in asyncio.run(main()).decode().replace("\r\n", "\n").split("\n\n"):
        if event.startswith("data:"):
            data = event.removeprefix("data:").strip()
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def _words(stream, events):
    """The text of every choice, by its number."""
    texts = {}
    for event in events:
        if type(event).__name__ == "TokenGenerated":
            choice = str(stream.choice(event))
            texts[choice] = texts.get(choice, "") + event.text
    return texts


@scenario(task=1)
def streams_on_their_own(nanovllm, rng):
    """Puts, ends, failures and looks of one reader, in an order that the dice choose."""
    import asyncio

    from nanovllm.batching.events import Aborted, Admitted, Failed, Preempted
    from nanovllm.generation.events import Completion, Finished, TokenGenerated
    from nanovllm.serving.stream import Stream

    async def one():
        ids, n = sorted(set(_numbers(rng, 0, 50, 3))), int(rng.integers(1, 4))
        stream, story = Stream(ids, n), []
        turns = aiter(stream)
        living = [(i, k) for i in ids for k in range(n)]
        while living and not stream.ended:
            events = []
            for _ in range(int(rng.integers(0, 4))):
                who = living[int(rng.integers(len(living)))] if living else None
                dice = int(rng.integers(10))
                if who is None:
                    break
                if dice < 6:
                    events.append(TokenGenerated(*who, dice, str(dice), 0.0))
                elif dice == 6:
                    events.append([Admitted, Preempted][len(living) % 2](*who, 0.0))
                else:
                    living.remove(who)
                    events.append(
                        [Finished(*who, Completion(who[1], (), "", "stop"), 0.0),
                         Aborted(*who, (), "", 0.0), Failed(*who, ValueError(), 0.0)][dice - 7]
                    )  # fmt: skip
            given = list(events)
            stream.put(given)
            given.clear()  # the list is the caller's
            story.append([stream.num_open, stream.ended])
            if rng.random() < 0.08 and not stream.ended:
                stream.fail(KeyError("luck"))
            if events and rng.random() < 0.5:
                batch = await anext(turns)
                story.append([[stream.choice(e), type(e).__name__] for e in batch])
        try:
            async for batch in turns:
                story.append([[stream.choice(e), type(e).__name__] for e in batch])
            story.append("end")
        except KeyError:
            story.append("failed")
        late = Stream([1])  # it fails before anybody has read what came
        late.put([Admitted(1, 0, 0.0), *[TokenGenerated(1, 0, 3, "x", 0.0)] * len(story)])
        late.fail(KeyError("luck"))
        try:
            story += [[len(batch) async for batch in late]]
        except KeyError:
            story.append("failed")
        return [*story, late.num_open]

    async def slow():
        """A reader who waits: nothing comes to it meanwhile, and others go on."""
        stream, heard = Stream([1, 2]), []
        turns = aiter(stream)
        for count in _numbers(rng, 1, 4, 3):
            reading = asyncio.ensure_future(anext(turns))
            for _ in range(3):
                await asyncio.sleep(0)
            heard.append(reading.done())
            stream.put([TokenGenerated(1, 0, 3, "x", 0.0)] * count)
            heard.append(len(await reading))
        return heard

    async def main():
        stories = [await asyncio.wait_for(one(), 20) for _ in range(8)]
        return [*stories, await asyncio.wait_for(slow(), 20)]

    return {"stories": asyncio.run(main())}


@scenario(task=1)
def a_crowd_that_comes_and_goes(nanovllm, rng):
    """Requests, hang-ups, looks at the engine, a failing request, deaths: while steps are held."""
    import asyncio

    from nanovllm.generation.errors import RequestError
    from nanovllm.generation.params import SamplingParams
    from nanovllm.serving.async_engine import AsyncEngine
    from nanovllm.serving.errors import EngineDeadError
    from nanovllm.serving.scripted import HeldEngine

    lengths = [40, *_numbers(rng, 1, 12, 90)]
    faults = {int(rng.integers(4, 9)): int(rng.integers(1, 5))}
    if rng.random() < 0.5:
        faults[int(rng.integers(9, 16))] = MemoryError("no room")
    engine = HeldEngine(
        script=lambda prompt, index: [
            f"{prompt[0]}.{index}.{k} " for k in range(lengths[prompt[0]])
        ],
        max_num_seqs=int(rng.integers(2, 9)),
        faults=faults,
    )
    seen, streams, readers, told = [], [], [], []
    front = AsyncEngine(engine, [lambda events, usage: seen.append([len(events), usage])])

    async def listen(stream):
        heard = []
        try:
            async for events in stream:
                heard += events
        except EngineDeadError as error:
            return heard, "MemoryError" in str(error) and "no room" in str(error)
        return heard, "end"

    def come(count, n, name):
        prompts = [[number] for number in _numbers(rng, 1, 90, count)] if name else [[0]]
        if name and rng.random() < 0.15:
            prompts.insert(int(rng.integers(0, count + 1)), [])
        try:
            stream = front.submit(prompts, SamplingParams(n=n), name=str(name))
        except RequestError:
            told.append("refused")
            return
        streams.append(stream)
        readers.append(asyncio.ensure_future(listen(stream)))

    async def main():
        front.start()
        come(1, 1, 0)
        for act in range(1, 18):
            if not await engine.until_held():
                return "nobody steps the engine"
            for _ in range(10):
                await asyncio.sleep(0)
            if engine.dead or not engine.has_unfinished:
                break
            if rng.random() < 0.6:
                come(int(rng.integers(1, 5)), int(rng.integers(1, 4)), act)
            for _ in range(int(rng.integers(0, 3))):
                gone = streams[int(rng.integers(1, len(streams)))] if len(streams) > 1 else None
                if gone is not None:
                    front.cancel(gone, ["timeout", "disconnected", "shutdown"][act % 3])
            asked = asyncio.ensure_future(front.call(lambda engine: engine.steps))
            await asyncio.sleep(0)
            engine.let_go()
            try:
                told.append(await asyncio.wait_for(asked, 20))
            except EngineDeadError:
                told.append("dead")
        engine.let_all_go()
        heard = await asyncio.wait_for(asyncio.gather(*readers), 20)
        for _ in range(10):
            await asyncio.sleep(0)
        left = [len(front.streams), front.num_open, front.error is None, front.alive]
        await front.stop()
        return [
            [_words(stream, events), end, stream.reason, stream.ended]
            for stream, (events, end) in zip(streams, heard, strict=True)
        ], left

    found = asyncio.run(main())
    # what a dead engine is still told is nobody's contract
    aborted = None if engine.dead else sorted(set(engine.aborted))
    return {"found": found, "told": told, "aborted": aborted, "seen": seen}


@scenario(task=1)
def engines_that_end(nanovllm, rng):
    """One is stopped, two die, while a step is held: who waited, what came, what is left."""
    import asyncio
    import threading

    from nanovllm.generation.errors import RequestError
    from nanovllm.generation.params import SamplingParams
    from nanovllm.serving.async_engine import AsyncEngine
    from nanovllm.serving.errors import EngineDeadError
    from nanovllm.serving.scripted import HeldEngine, ScriptedEngine

    async def turns():
        for _ in range(10):
            await asyncio.sleep(0)

    async def ended(work):
        try:
            return await asyncio.wait_for(work, 20)
        except (EngineDeadError, KeyError) as error:
            return type(error).__name__

    async def listen(stream):
        heard = []
        try:
            async for events in stream:
                heard += events
        except EngineDeadError as error:
            return heard, error
        return heard, None

    def broken(engine):
        raise KeyError("luck")

    async def one(fault):
        dies = fault is not None
        last, here, seen = int(rng.integers(4, 8)), threading.get_ident(), []
        lengths = [1, *_numbers(rng, 20, 90, 8)]
        engine = HeldEngine(
            script=lambda prompt, index: ["x"] * lengths[prompt[0]],
            max_num_seqs=int(rng.integers(2, 9)),
            faults={last: fault} if dies else {},
        )

        def look(events, usage):  # the streams that end in this step are still there
            heard_of = {event.request_id for event in events if hasattr(event, "request_id")}
            seen.append([len(events), usage, sorted(heard_of & {*front.streams})])

        front = AsyncEngine(engine, [look])
        front.start()

        def ask(function):
            return asyncio.ensure_future(ended(front.call(function)))

        def submit(prompts, n):
            try:
                return front.submit(prompts, SamplingParams(n=n), name="x")
            except (RequestError, EngineDeadError) as error:
                return "refused" if isinstance(error, RequestError) else "EngineDeadError"

        told = [await ask(lambda engine: [engine.steps, threading.get_ident() == here])]
        await asyncio.sleep(0.02)  # its thread has gone to sleep
        streams = [submit([[0]], 1)]
        if not await engine.until_held():
            return "nobody steps the engine"
        streams += [
            submit([[int(x)] for x in rng.integers(1, 9, size=rng.integers(1, 4))], k + 1)
            for k in range(3)
        ]
        readers = [asyncio.ensure_future(listen(stream)) for stream in streams]
        for step in range(1, last):
            asked = [ask(lambda engine: [engine.steps, threading.get_ident() == here]), ask(broken)]
            if step == 2:
                told.append(submit([[3], [int(rng.integers(1, 9))], []], 2))
                asyncio.get_running_loop().call_soon(ask(lambda engine: 0).cancel)
                front.cancel(streams[1], "timeout")
                front.cancel(streams[1], "disconnected")
            await turns()
            engine.let_go()
            told += [await work for work in asked]
            if not await engine.until_held():
                return "nobody steps the engine"
            await turns()
            told.append([front.num_open, len(front.streams)])
        aborted = sorted(set(engine.aborted))  # what it is told at its end is nobody's contract
        asked = ask(lambda engine: engine.steps)
        await turns()
        stopping = None if dies else asyncio.ensure_future(front.stop())
        await turns()
        told.append(stopping is not None and stopping.done())
        engine.let_all_go()
        told.append(await asked)
        if stopping is not None:
            await asyncio.wait_for(stopping, 20)
        heard = await asyncio.wait_for(asyncio.gather(*readers), 20)
        front.cancel(streams[0], "timeout")  # it ended long ago
        told += [submit([[1]], 1), await ask(lambda engine: engine.steps)]
        left = [front.alive, len(front.streams), front.num_open, type(front.error).__name__]
        await asyncio.wait_for(front.stop(), 20)
        errors = [error for _, error in heard if error is not None]
        said = [str(error) for error in errors] if dies else []
        return {
            "told": told,
            "left": [*left, front.alive, engine.steps, aborted],
            "heard": [
                _words(stream, events) for stream, (events, _) in zip(streams, heard, strict=True)
            ],
            "ends": [type(error).__name__ for _, error in heard],
            "its words": [type(fault).__name__ in text and "no room" in text for text in said],
            "streams": [[stream.reason, stream.ended] for stream in streams],
            "seen": seen,
        }

    async def refused():
        """An engine that sleeps takes some prompts of a submit, and refuses the last."""
        engine = ScriptedEngine(script=lambda prompt, index: ["x"] * 300)
        front = AsyncEngine(engine)
        front.start()
        await ended(front.call(lambda engine: 0))
        await asyncio.sleep(0.05)  # its thread has gone to sleep
        try:
            front.submit([*([[5]] * int(rng.integers(1, 9))), []], SamplingParams(n=2))
        except RequestError:
            for _ in range(500):
                if engine.has_unfinished:
                    await asyncio.sleep(0.01)
        left = [engine.has_unfinished, sorted(set(engine.aborted)), len(front.streams)]
        await front.stop()
        return left

    async def main():
        faults = (None, MemoryError("no room"), SystemExit("no room"))
        found = [await asyncio.wait_for(one(fault), 60) for fault in faults]
        return [*found, await asyncio.wait_for(refused(), 20)]

    return {"found": asyncio.run(main())}


@scenario(task=2)
def requests_with_one_thing_wrong(nanovllm, rng):
    """Each request is right, or wrong in one way: what nobody fixed is not asked for."""
    import re
    from dataclasses import asdict

    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    from nanovllm.serving.failures import api_error
    from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest
    from nanovllm.serving.sampling import sampling_params

    def refused(request, prompt):
        """How a request is refused; the field; which of the four numbers its message holds."""
        try:
            return sampling_params(request, prompt, 64).max_tokens
        except Exception as error:
            answer = api_error(error)
            asked = request.max_tokens
            if isinstance(request, ChatCompletionRequest):
                more = request.max_completion_tokens
                asked = asked if more is None else more
            part = 1 if asked is None else asked
            said = re.findall(r"\d+", answer.message)
            numbers = [str(x) in said for x in (64, prompt + part, prompt, part)]
            return [answer.status, answer.param, numbers if answer.param != "top_logprobs" else []]

    pools = {
        "n": [None, 1, 3], "temperature": [None, 0, 0.5], "top_p": [None, 0.25], "top_k": [None, 5],
        "seed": [None, 0, 9], "stop": [None, "a", ["b", "c"]], "ignore_eos": [None, True, False],
        "presence_penalty": [None, 0, 0.5], "skip_special_tokens": [None, False],
        "logit_bias": [None, {"7": 3.0}], "max_tokens": [None, 1, 9], "min_p": [None, 0.0, 0.1],
        "frequency_penalty": [None, 0, 0.5], "repetition_penalty": [None, 1.5],
        "stop_token_ids": [None, [4, 8]], "min_tokens": [None, 0, 1],
        "include_stop_str_in_output": [None, True], "allowed_token_ids": [None, [3, 7]],
        "bad_words": [None, ["d", "e f"]], "prompt_logprobs": [None, 0, 2],
        "cache_salt": [None, "mine"],
    }  # fmt: skip
    wrong = [{"temperature": -1.0}, {"top_p": 1.5}, {"logit_bias": {"x": 1.0}}, {"max_tokens": 0},
             {"max_tokens": 60}, {"top_p": 0.0}]  # fmt: skip
    found = []
    for number in range(60):
        given = {name: pool[int(rng.integers(len(pool)))] for name, pool in pools.items()}
        prompt = int(rng.integers(10, 50))
        mistake = wrong[int(rng.integers(len(wrong)))] if number % 3 == 0 else {}
        if number % 3 == 1 and rng.random() < 0.2:
            given["max_tokens"], prompt = None, int(rng.integers(64, 70))
        given |= mistake
        if rng.random() < 0.5:
            tops = [None, 0, 4][int(rng.integers(3))]
            request = CompletionRequest(prompt="a", logprobs=tops, **given)
        else:
            said = [None, True, False][int(rng.integers(3))]
            tops = [None, 0, 2][int(rng.integers(3))] if said else None
            more = {} if mistake else {"max_completion_tokens": [None, 5, 14][int(rng.integers(3))]}
            request = ChatCompletionRequest(
                messages=[{"role": "user", "content": "a"}],
                logprobs=said, top_logprobs=tops, **more, **given,
            )  # fmt: skip
        try:
            params = asdict(sampling_params(request, prompt, 64))
            params["logit_bias"] = sorted((params["logit_bias"] or {}).items())
            found.append(
                {name: list(v) if isinstance(v, tuple) else v for name, v in params.items()}
            )
        except Exception as error:
            answer = api_error(error)
            found.append([answer.status, answer.type])
    lengths, talk = [], [{"role": "user", "content": "a"}]
    for _ in range(40):
        prompt, asked = int(rng.integers(40, 70)), [None, *_numbers(rng, 1, 30, 3)]
        first, second = (asked[int(i)] for i in rng.integers(4, size=2))
        lengths += [
            refused(CompletionRequest(prompt="a", max_tokens=first), prompt),
            refused(
                ChatCompletionRequest(
                    messages=talk, max_tokens=first, max_completion_tokens=second
                ),
                prompt,
            ),
        ]
    for said in (None, True, False):
        tops = int(rng.integers(1, 5))
        request = ChatCompletionRequest(messages=talk, logprobs=said, top_logprobs=tops)
        lengths.append(refused(request, 9))
        plain = ChatCompletionRequest(messages=talk, logprobs=said)
        lengths.append(sampling_params(plain, 9, 64).logprobs)
        zero = ChatCompletionRequest(messages=talk, logprobs=said, top_logprobs=0)
        lengths += [refused(zero, 9), sampling_params(zero, 9, 64).logprobs]
    secret, answers = f"secret{rng.integers(1000)}", []
    for place in (("messages", tops, "role"), ("stop", secret), (tops,), (secret,)):
        wrong = RequestValidationError([{"loc": ("body", *place), "msg": "no luck"}])
        answer = api_error(wrong)
        named = [part in answer.message for part in (*place, "no luck") if isinstance(part, str)]
        answers.append([answer.status, answer.type, answer.param, named])
    for error in (
        ZeroDivisionError(secret), KeyError(secret), HTTPException(404, secret),
        HTTPException(405, secret, {"Allow": "GET"}), NotImplementedError(secret),
    ):  # fmt: skip
        answer = api_error(error)
        shown = [secret in answer.message, type(error).__name__ in answer.message]
        headers = sorted(answer.headers.items())
        answers.append([answer.status, answer.type, answer.param, headers, *shown])
    return {"params": found, "lengths": lengths, "answers": answers}


@scenario(task=2)
def a_server_asked_wrongly(nanovllm, rng):
    """Bodies that are wrong in one way, over HTTP: status, form, and the field that is named.

    The server is a few lines of its own: lab 07's needs most of the other tasks.
    """
    import asyncio

    import httpx
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse

    from nanovllm.generation.params import ParamsError
    from nanovllm.serving.errors import ApiError
    from nanovllm.serving.failures import api_error, check_model
    from nanovllm.serving.protocol import CompletionRequest
    from nanovllm.serving.readable import readable
    from nanovllm.serving.sampling import sampling_params

    app = FastAPI()

    @app.exception_handler(ApiError)
    @app.exception_handler(ParamsError)
    @app.exception_handler(RequestValidationError)
    async def refused(request, error):
        found = api_error(readable(error) if isinstance(error, RequestValidationError) else error)
        return JSONResponse(found.body, found.status)

    @app.post("/v1/completions")
    async def completion(body: CompletionRequest):
        check_model(body.model, "tiny")
        params = sampling_params(body, len(body.prompt), 40)
        return {"params": [params.n, params.max_tokens, params.seed]}

    text = "a" * int(rng.integers(1, 30))
    bodies = [
        {"prompt": text, "model": "tiny"}, {"prompt": text, "model": "Tiny"}, {"seed": 3},
        {"prompt": text, "max_tokens": 41}, {"prompt": "a" * int(rng.integers(40, 60))},
        {"prompt": text, "n": 0}, {"prompt": text, "seed": "x"}, {"prompt": text, "min_tokens": 41},
        {"prompt": text, "n": 6}, {"prompt": text, "stop": 5}, {"prompt": text, "max_tokens": 2},
        {"prompt": text, "logprobs": 99}, {"prompt": text, "stream_options": 1}, [],
    ]  # fmt: skip
    order = [int(i) for i in rng.permutation(len(bodies))]

    async def main():
        transport = httpx.ASGITransport(app)
        found = []
        async with httpx.AsyncClient(transport=transport, base_url="http://lab") as client:
            for number in order:
                answer = await client.post("/v1/completions", json=bodies[number])
                said = answer.json()
                error = said.get("error", {})
                told = [sorted(error), error.get("param"), said.get("params")]
                found.append([number, answer.status_code, *told])
        return found

    check_model(None, "tiny")
    return {"answers": asyncio.run(asyncio.wait_for(main(), 30))}


@scenario(task=3)
def answers_of_many_kinds(nanovllm, rng):
    """Completions and chats, with log-probabilities, echo and usage; aborts, failures, deaths."""
    from nanovllm.batching.events import Aborted, Admitted, Failed, Preempted, Stepped
    from nanovllm.generation.events import Completion, Finished, Logprob, TokenGenerated
    from nanovllm.serving.deltas import merge
    from nanovllm.serving.errors import EngineDeadError
    from nanovllm.serving.stream import Stream
    from nanovllm.serving.streaming import event_stream
    from nanovllm.serving.writers import ChatWriter, CompletionWriter

    class Letters:
        def decode(self, ids, **how):
            return "".join(chr(97 + i % 26) for i in ids)

        def token_bytes(self, token_id):
            return self.decode([token_id]).encode()

    found = []
    for number in range(12):
        n, tops = int(rng.integers(1, 4)), [None, 0, 1][int(rng.integers(3))]
        stream = Stream([40, 9], n)
        stream.reason = [None, "timeout", "cancelled", "disconnected"][int(rng.integers(4))]
        living = [(request_id, index) for request_id in (40, 9) for index in range(n)]
        steps = []
        while living:
            events = [Stepped((), 1, 0, 8, 9, 0.0, 0.0)]
            for who in list(living):
                dice = rng.random()
                for _ in range(int(rng.integers(0, 3))):  # a reader who was late gets two at once
                    token_id = int(rng.integers(26))
                    text = ["", "a ", "b\n", "\u00e9\U0001f642"][int(rng.integers(4))]
                    likely = None if tops is None else {token_id: Logprob(-0.5, 1)}
                    events.append(TokenGenerated(*who, token_id, text, 0.0, likely))
                if dice < 0.1:
                    events.append([Admitted, Preempted][n % 2](*who, 0.0))
                elif dice < 0.25:
                    why = [("stop", None), ("length", None), ("stop", "X"), ("stop", 7)]
                    done = Completion(who[1], (1,), "", *why[int(rng.integers(4))])
                    events.append(Finished(*who, done, 0.0))
                    living.remove(who)
                elif dice < 0.35:
                    said = tuple(range(int(rng.integers(0, 3))))
                    events.append(Aborted(*who, said, "all", 0.0))
                    living.remove(who)
                elif dice < 0.36:
                    events.append(Failed(*who, ValueError("luck"), 0.0))
                    living.remove(who)
            steps.append(events)
        if number == 11:  # one sample fails
            steps.insert(int(rng.integers(0, 2)), [Failed(9, 0, ValueError("luck"), 0.0)])
        ends = [Aborted(40, 0, said, "", 0.0) for said in ((), (1,))]
        ends.append(Finished(40, 0, Completion(0, (1,), "", "stop", number), 0.0))
        for end in ends:
            [delta] = merge(stream, [Admitted(40, 0, 0.0), end])
            found.append([delta.index, delta.text, delta.finish_reason, delta.stop_reason])
        dies = int(rng.integers(0, 60))

        async def merged(stream=stream, steps=steps, dies=dies):
            for count, events in enumerate(steps):
                if count == dies:
                    raise EngineDeadError("The engine has died.")
                yield merge(stream, events)

        kind = [ChatWriter, CompletionWriter][number % 2]
        writer = kind("id", "m", 0, Letters(), [[1], [2]], n, tops,
                      include_usage=bool(rng.integers(2)))  # fmt: skip
        if number % 4 == 1:
            writer.echo = ["one", "two"]
        events = _events(event_stream(merged(), writer))
        for event in events:  # the sentence of an error is nobody's contract
            if "error" in event:
                event["error"]["message"] = "luck" in event["error"]["message"]
        found.append(events)
    return {"events": found}


@scenario(task=3)
def readers_that_leave(nanovllm, rng):
    """A stream whose reader is cancelled, or closes it: what came before, and that is all."""
    import asyncio

    from nanovllm.serving.deltas import Delta
    from nanovllm.serving.streaming import event_stream
    from nanovllm.serving.virtual_time import run_virtual

    class Plain:
        def opening(self, index):
            return {"opening": index}

        def chunk(self, delta):
            return {"chunk": delta.index, "text": delta.text}

        def usage(self):
            return {"usage": True}

    async def one(count, leaves, closes):
        story = []

        async def steps():
            for number in range(count):
                await asyncio.sleep(1.0)
                yield [Delta(k, f"{number}", [5]) for k in range(number % 3)]

        pieces = event_stream(steps(), Plain())
        close = getattr(pieces, "aclose", None)

        async def read():
            try:
                async for piece in pieces:
                    story.append(piece.decode())
                    if closes and len(story) > leaves:
                        if close is not None:
                            await close()
                        return
            except BaseException as error:
                story.append(type(error).__name__)
                raise

        reader = asyncio.ensure_future(read())
        if not closes:
            asyncio.get_running_loop().call_later(leaves + 0.5, reader.cancel)
        await asyncio.wait([reader])
        story.append("cancelled" if reader.cancelled() else repr(reader.exception()))
        if close is not None or not closes:  # nobody is told anything more
            story += [piece.decode() async for piece in pieces]
        return story

    return {
        "stories": [
            run_virtual(one(int(rng.integers(8, 14)), int(rng.integers(1, 5)), closes))
            for closes in (False, True) * 3
        ]
    }


@scenario(task=3)
def clients_that_leave(nanovllm, rng):
    """Work and hang-ups in virtual time, also within the same turn of the loop."""
    import asyncio

    from nanovllm.serving.streaming import ClientGoneError, while_connected
    from nanovllm.serving.virtual_time import run_virtual

    async def one(work_ends, client_ends, fails, stubborn, patience=99.0):
        story = []

        async def receive():
            if story.count("message") < 2:
                story.append("message")
                return {"type": "http.request"}
            if client_ends:
                await asyncio.sleep(client_ends)
            return {"type": "http.disconnect"}

        async def work():
            try:
                if work_ends:
                    await asyncio.sleep(work_ends)
                if fails:
                    raise KeyError("work")
                return "answer"
            finally:
                if stubborn:
                    await asyncio.sleep(1.0)
                story.append("work is over")

        try:
            story.append(await asyncio.wait_for(while_connected(receive, work()), patience))
        except (ClientGoneError, KeyError, TimeoutError) as error:
            story.append(type(error).__name__)
        return [story, len(asyncio.all_tasks()) - 1, asyncio.get_running_loop().time()]

    return {
        "stories": [
            run_virtual(
                one(float(rng.uniform(0.1, 9)), float(rng.uniform(0.1, 9)),
                    bool(rng.integers(2)), bool(rng.integers(2)))
            )
            for _ in range(12)
        ],
        "both at once": run_virtual(one(0.0, 0.0, False, False))[0][-1],
        "nobody waits any longer": [
            run_virtual(one(60.0, 60.0, False, stubborn, float(rng.uniform(1, 50))))
            for stubborn in (False, True)
        ],
    }  # fmt: skip


@scenario(task=4)
def a_day_at_the_door(nanovllm, rng):
    """Keys in debt, a server that begins to drain, charges between two looks at the same moment."""
    from nanovllm.generation.latency import ManualClock
    from nanovllm.serving.admission import Admission, TokenBucket
    from nanovllm.serving.config import ServeConfig
    from nanovllm.serving.errors import ApiError

    clock, story = ManualClock(float(rng.uniform(0, 100))), []
    for day in range(4):  # some have limits and little room, others anything
        keys = ("k1", "k22", "k")[: 3 if day % 2 else int(rng.integers(0, 4))]
        config = ServeConfig(
            api_keys=keys,
            max_queue=int(rng.integers(0, 9)),
            rate_limit=int(rng.integers(10, 200)) if day % 2 or rng.random() < 0.8 else None,
        )
        admission = Admission(config, int(rng.integers(1, 5 if day % 2 else 9)), clock)
        story.append(admission.limit)
        for step in range(90):
            clock.advance(float(rng.uniform(0, 12)) * (rng.random() < 0.7))
            key = (*keys, "", "stranger")[int(rng.integers(len(keys) + 2))]
            admission.draining = 30 < step < 60
            for _ in range(int(rng.integers(0, 3))):
                admission.charge(key, int(rng.integers(0, 60)))
            try:
                admission.enter(key, int(rng.integers(1, 14)), int(rng.integers(0, 12)))
                story.append("in")
            except ApiError as error:
                after = error.headers.get("Retry-After")  # of a 503 nobody has fixed when
                story.append([error.status, str(after).isdigit() if error.status == 503 else after])
    even, clock = TokenBucket(60, watch := ManualClock()), ManualClock(float(rng.uniform(0, 100)))
    for _ in range(12):  # an empty bucket is not enough, to the second
        even.charge(int(rng.integers(0, 4)) + round(max(even.level, 0.0)))
        story.append([round(float(even.level), 6), even.wait])
        watch.advance(float(rng.integers(0, 3)))
    bucket = TokenBucket(float(rng.uniform(5, 500)), clock)
    for _ in range(40):
        bucket.charge(int(rng.integers(0, 200)))
        clock.advance(float(rng.uniform(0, 30)) * (rng.random() < 0.6))
        story.append([round(float(bucket.level), 6), bucket.wait])
    return {"story": story}


@scenario(task=4)
def timers_and_a_drain(nanovllm, rng):
    """Deadlines of requests that run at the same time, then a drain during which some end."""
    import asyncio

    from nanovllm.serving.deadline import deadline, drain
    from nanovllm.serving.stream import Stream
    from nanovllm.serving.virtual_time import run_virtual

    works = [float(x) for x in rng.uniform(0.5, 20.0, size=12).round(2)]
    limits = [None if x > 14 else float(x) for x in rng.uniform(1.0, 18.0, size=12).round(2)]
    limits[int(rng.integers(12))] = 0.0
    patience = float(rng.integers(3, 12))
    # an end near the limit would ask at which tick drain looks, which nobody fixed
    ends = [x + 3 * (abs(x - patience) < 1.0) for x in works]
    ends[:2] = patience + 4, patience + 5

    async def main():
        loop, told = asyncio.get_running_loop(), []

        def cancel(stream, reason):
            told.append([stream.name, reason])

        def give_up(stream, reason):
            cancel(stream, reason)
            if int(stream.name) % 2:  # it ends at once
                lasts[int(stream.name)] = stream, 0.0

        async def nap(seconds):
            naps.append(seconds)
            await asyncio.sleep(seconds)

        async def one(i):
            try:
                with deadline(loop, limits[i], cancel, Stream([i], name=str(i))):
                    await asyncio.sleep(works[i])
                    if i % 3 == 0:
                        raise KeyError("work")
            except KeyError:
                told.append([str(i), "KeyError"])

        await asyncio.gather(*(one(i) for i in range(12)))
        found = {"told": list(told)}
        for name, limit in (("short", patience), ("long", 40.0)):
            told.clear()
            begun, naps = loop.time(), []
            lasts = {i: (Stream([i], name=str(i)), begun + ends[i]) for i in range(12)}
            cut = await drain(
                lambda lasts=lasts: [s for s, end in lasts.values() if loop.time() < end],
                give_up,
                limit,
                nap,
                tick=0.25,
            )
            took, wanted = loop.time() - begun, min(limit, max(ends))
            in_time = wanted - 0.001 <= took <= wanted + 0.251
            by_naps = max(naps) <= 0.25 and abs(sum(naps) - took) < 0.001
            found[name] = {"given up": sorted(told), "cut": cut, "waits": [in_time, by_naps]}
        return found

    return run_virtual(main())


def _samples(metrics):
    return [
        [sample.name, sorted(sample.labels.items()), round(sample.value, 6)]
        for family in metrics.registry.registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]


@scenario(task=5)
def metrics_of_a_real_run(nanovllm, rng):
    """A real engine that takes turns, with a prefix cache, observed step by step."""
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
    return {"gauges": gauges, "samples": _samples(metrics), "open": metrics.num_open}


@scenario(task=5)
def metrics_of_made_up_lives(nanovllm, rng):
    """Lives as an engine reports them: cached prompts, pauses, several tokens at one moment."""
    from nanovllm.batching.events import (
        Aborted,
        Admitted,
        ChunkRun,
        Failed,
        Preempted,
        Queued,
        Stepped,
    )
    from nanovllm.generation.events import Completion, Finished, Prefilled, TokenGenerated
    from nanovllm.serving.metrics import Metrics

    metrics, now, story, lives, fresh = Metrics("m"), 0.0, [], {}, 0
    for _ in range(60):
        now += float(rng.choice([0.0, 0.25, 3.0]))
        events, chunks = [], []
        if rng.random() < 0.5:
            for index in range(int(rng.integers(1, 3))):
                events.append(Queued(fresh, index, now))
                lives[fresh, index] = "waits"
            fresh += 1
        for who, state in list(lives.items()):
            dice = rng.random()
            if state == "waits" and dice < 0.4:
                events.append(Admitted(*who, now))
                lives[who] = "reads"
            elif state == "waits" and dice > 0.95:
                events.append(Aborted(*who, (), "", now))
                del lives[who]
            elif state == "reads":
                start = int(rng.integers(0, 20))
                chunks.append(ChunkRun(*who, start, int(rng.integers(1, 9))))
                if dice < 0.6:
                    if who[1] == 0:
                        events.append(Prefilled(who[0], start + 3, now))
                    events.append(TokenGenerated(*who, 5, "x", now))
                    lives[who] = "speaks"
            elif state == "speaks" and dice < 0.5:
                chunks.append(ChunkRun(*who, 30, 1))
                events += [TokenGenerated(*who, 5, "x", now)] * int(rng.integers(1, 3))
            elif state == "speaks" and dice < 0.65:
                events.append(Preempted(*who, now))
                lives[who] = "waits"
            elif state == "speaks" and dice < 0.85:
                ends = (Finished(*who, Completion(who[1], (5,), "x", ["stop", "length"][fresh % 2]),
                                 now),
                        Aborted(*who, (5,), "x", now), Failed(*who, ValueError(), now))  # fmt: skip
                events.append(ends[int(rng.integers(3))])
                del lives[who]
        if chunks:
            events.append(Stepped(tuple(chunks), 1, 1, 64, 9, now, now))
        metrics.observe(events, float(rng.integers(0, 5)) / 4)
        labels = {"model_name": "m", "engine": "0"}
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        story.append(
            [metrics.registry.registry.get_sample_value(f"nanovllm:{x}", labels) for x in names]
            + [metrics.num_open]
        )
    return {"gauges": story, "samples": _samples(metrics)}


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
    from nanovllm.serving.snapshot import blocks_of, engine_state

    shape = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 40, qk_norm=True, eos_token_ids=(2,))
    clock = ManualClock(float(rng.uniform(0, 50)))
    policy = ["sjf", "priority-with-ageing"][int(rng.integers(2))]
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=7, policy=policy)
    engine = Engine(dummy_model(shape, seed=int(rng.integers(99))), config, clock=clock)
    states = []
    for i in range(8):
        params = SamplingParams(max_tokens=int(rng.integers(1, 9)), n=1 + i % 2)
        priority = list(Priority)[int(rng.integers(3))]
        size = int(rng.integers(1, 12))
        engine.add_request(_numbers(rng, 3, 47, size), params, seed=i, priority=priority)
    for step in range(60):
        if step == 5:
            engine.abort(int(rng.integers(8)))
        clock.advance(float(rng.uniform(0.05, 1.5)))
        engine.step()
        if step % 4 == 0:
            states.append(engine_state(engine, {1: "one", 3: "three"}))
    first, second = object(), object()
    held = {first: _numbers(rng, 0, 9, 3), second: ()}
    stores = SimpleNamespace(block_ids=held.__getitem__), object()
    blocks = [blocks_of(s, r) for s in stores for r in held]
    held[first].append(10)  # the engine goes on
    return {"states": states, "blocks": blocks}


@scenario(task=7)
def random_load(nanovllm, rng):
    """Records of every kind in any order; of arrivals only what the contract fixes."""
    from nanovllm.serving.load import Record, Slo, arrival_times, goodput

    rate, shape, seed = float(rng.uniform(0.2, 30)), float(rng.uniform(0.6, 5)), 1
    seed = int(rng.integers(1000))
    times = arrival_times(rate, 5000, burstiness=shape, seed=seed)
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean
    kept = [
        len(times) == 5000 and min(gaps) >= 0,
        abs(mean * rate - 1) < 0.12,
        abs(spread * shape**0.5 - 1) < 0.2,
        times == arrival_times(rate, 5000, burstiness=shape, seed=seed),
        times != arrival_times(rate, 5000, burstiness=shape, seed=seed + 1),
    ]
    records = []
    for due in rng.uniform(0, 60, size=40):
        late = due + rng.uniform(0, 0.5)
        tokens = late + rng.uniform(0.01, 0.5, size=int(rng.integers(0, 8))).cumsum()
        error = "503" if rng.random() < 0.2 else None
        ended = float(tokens[-1]) + 0.1 if len(tokens) else float(late) + 0.5
        records.append(Record(float(due), tuple(map(float, tokens)), ended, 5, error))
    records.append(Record(50.0, (50.5,), float(rng.uniform(70, 80)), 5, "503"))  # the last to end
    slos = [
        Slo(*(None if x < 0.1 else float(x) for x in rng.uniform(0, 2.5, size=3)))
        for _ in range(12)
    ]
    exact = Record(1.0, (1.5, 2.0, 2.5), 2.5)
    return {
        "kept": kept,
        "met": [[slo.met(record) for record in records] for slo in slos],
        "limits": [slo.met(exact) for slo in (Slo(0.5, 0.5, 1.5), Slo(0.4), Slo(e2e=1.4))],
        "goodput": [round(goodput(records, slo), 9) for slo in slos],
        "nobody": goodput([], Slo()),
    }
