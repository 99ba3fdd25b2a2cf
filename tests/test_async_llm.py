"""`AsyncLLM`: the answers of `LLM`, many at once, each an async generator that may be left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from nanovllm import LLM, AsyncLLM, RequestOutput, SamplingParams
from nanovllm.generation.errors import EmptyPromptError, RequestError
from nanovllm.generation.structured import StructuredOutputsParams
from nanovllm.llm import OptionError
from nanovllm.serving.errors import EngineDeadError

PROMPTS = ["Once upon a time there was a little", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "12 + 30 ="]
SAMPLED = SamplingParams(temperature=0.9, n=2, logprobs=1, max_tokens=12)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


def on_loop(work: Callable[[AsyncLLM], Awaitable], **options: object) -> object:
    async def main() -> object:
        async with AsyncLLM(enforce_eager=True, **options) as llm:
            found = await asyncio.wait_for(work(llm), 120)
            engine = llm.llm.runner.engine
            while engine.has_unfinished:  # the thread still reads its notes
                await asyncio.sleep(0.01)
            engine.check()
            assert engine.store.free_tokens == engine.store.total_tokens and not llm._streams
            return found

    return asyncio.run(main())


async def all_of(outputs) -> list[RequestOutput]:
    return [output async for output in outputs]


def test_answers_are_those_of_llm_and_grow_piece_by_piece() -> None:
    async def work(llm: AsyncLLM) -> list[list[RequestOutput]]:
        return await asyncio.gather(*(all_of(llm.generate(p, SAMPLED)) for p in PROMPTS))

    want = LLM(enforce_eager=True).generate(PROMPTS, SAMPLED, use_tqdm=False)
    for outputs, expected in zip(on_loop(work), want, strict=True):
        assert outputs[-1].outputs == expected.outputs
        assert [output.finished for output in outputs[-2:]] == [False, True]
        assert outputs[-1].prompt == expected.prompt and outputs[-1].prompt_token_ids
        for before, after in pairwise(outputs):
            for old, new in zip(before.outputs, after.outputs, strict=True):
                assert new.text.startswith(old.text)
                assert new.token_ids[: len(old.token_ids)] == old.token_ids


def test_salts_scores_and_costs_are_those_of_llm() -> None:
    asked = {"prompt": "Once upon a time there was a little girl. " * 4, "cache_salt": "a"}
    params = SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=1)
    plain = SamplingParams(max_tokens=3, temperature=0.0)

    async def work(llm: AsyncLLM) -> list[RequestOutput]:
        other = asked | {"cache_salt": "b"}
        prompts = [(asked, params), (asked, plain), (other, plain), (asked, plain)]
        return [(await all_of(llm.generate(*each)))[-1] for each in prompts]

    first, _, other, again = on_loop(work)
    [want] = LLM(enforce_eager=True).generate(asked, params, use_tqdm=False)
    assert first.prompt_logprobs == want.prompt_logprobs
    assert [first.num_cached_tokens, other.num_cached_tokens] == [0, 0]
    assert again.num_cached_tokens > 0, "its own tokens are there, nobody else's"
    cost = again.metrics
    assert cost is not None and cost.generation_tokens == 3 and cost.latency > 0


def test_a_request_is_given_up_while_its_grammar_is_made() -> None:
    shape = StructuredOutputsParams(regex="[a-z ]{3,400}")
    params = SamplingParams(max_tokens=400, structured_outputs=shape)

    async def work(llm: AsyncLLM) -> list[str | None]:
        first = asyncio.create_task(all_of(llm.generate(PROMPTS[0], params, "mine")))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="in use"):
            await anext(llm.generate(PROMPTS[1], params, "mine"))
        await llm.abort("mine")
        return [output.outputs[0].finish_reason for output in await first]

    assert on_loop(work)[-1] == "abort"


def test_abort_ends_the_generator_with_what_there_is() -> None:
    async def work(llm: AsyncLLM) -> RequestOutput:
        async for output in llm.generate(PROMPTS[0], LONG, "mine"):
            if len(output.outputs[0].token_ids) == 5:
                await llm.abort("mine")
                await llm.abort("nobody")
        return output

    last = on_loop(work)
    assert last.request_id == "mine" and last.finished
    assert last.outputs[0].finish_reason == "abort"
    assert 5 <= len(last.outputs[0].token_ids) < 400 and last.outputs[0].text


@pytest.mark.parametrize("how", ["aclose", "cancel"])
def test_who_stops_reading_gives_the_request_up(how: str) -> None:
    async def work(llm: AsyncLLM) -> None:
        outputs = llm.generate(PROMPTS[0], LONG)
        await anext(outputs)
        if how == "aclose":
            await outputs.aclose()
            return
        task = asyncio.create_task(all_of(outputs))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_loop(work)


def test_bad_requests_are_refused_and_others_go_on() -> None:
    async def work(llm: AsyncLLM) -> None:
        with pytest.raises(EmptyPromptError):
            llm.generate("")
        first = llm.generate(PROMPTS[0], LONG, "a")
        await anext(first)
        with pytest.raises(RequestError, match="request_id 'a' is in use"):
            await anext(llm.generate(PROMPTS[1], LONG, "a"))
        assert await anext(first)
        await first.aclose()

    on_loop(work)


def test_a_shutdown_ends_open_requests_with_one_sentence() -> None:
    async def main() -> None:
        llm = AsyncLLM(enforce_eager=True)
        outputs = llm.generate(PROMPTS[0], LONG)
        await anext(outputs)
        await llm.shutdown()
        with pytest.raises(EngineDeadError, match="was stopped"):
            await all_of(outputs)

    asyncio.run(main())


def test_static_batches_have_no_async_engine() -> None:
    with pytest.raises(OptionError, match="AsyncLLM needs lab04"):
        AsyncLLM(engine="static")


def in_new_process(code: str) -> tuple[str, str]:
    """What a program prints, and what it says on its standard error, if it ends well."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_loop_that_nobody_shuts_down_leaves_nothing_behind() -> None:
    """Requests in the middle, two loops one after the other, and the end of the process."""
    code = """
import asyncio
from nanovllm import AsyncLLM, SamplingParams
long = SamplingParams(max_tokens=800, temperature=0, ignore_eos=True)
llm = AsyncLLM(enforce_eager=True)

async def some():
    told = [llm.generate("Once upon a time", long) for _ in range(30)]
    return [await anext(one) for one in told][-1].outputs[0].text

async def one():
    short = SamplingParams(max_tokens=3, temperature=0)
    return [output async for output in llm.generate("a", short)][-1].finished

print(asyncio.run(some()) == asyncio.run(some()), asyncio.run(one()))
print(llm.llm.runner.engine.has_unfinished)
asyncio.run(some())
"""
    assert in_new_process(code) == ("True True\nFalse\n", "")


def test_threads_share_one_llm() -> None:
    llm = LLM(enforce_eager=True)
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    alone = [llm.generate(prompt, params, use_tqdm=False)[0].outputs for prompt in PROMPTS]

    def again(number: int) -> bool:
        place = number % len(PROMPTS)
        return llm.generate(PROMPTS[place], params, use_tqdm=False)[0].outputs == alone[place]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(again, range(12)))
    engine = llm.runner.engine
    engine.check()
    assert engine.store.free_tokens == engine.store.total_tokens


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_says_that_its_threads_are_gone() -> None:
    code = """
import os, torch
from nanovllm import LLM
torch.set_num_threads(2)
llm = LLM(enforce_eager=True)
for work in (lambda: llm.generate("a", use_tqdm=False), lambda: LLM()):
    pid = os.fork()
    if not pid:
        try:
            work()
        except RuntimeError as error:
            os._exit(7 if "was forked" in str(error) else 8)
        os._exit(9)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert in_new_process(code)[0] == "7\n7\n"
