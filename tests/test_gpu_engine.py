"""The GPU engine on a CPU: the plain engine's events and texts, and steps launched ahead.

Kernels in Triton's interpreter, nothing captured; where the schedule is what matters and many
steps are wanted, torch's operations in the kernels' place. Nothing here ran on a GPU.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, partialmethod
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import gpu_kernels
from nanovllm import LLM
from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.errors import NonFiniteLogitsError
from nanovllm.batching.events import Aborted, EngineEvent, Failed, Preempted
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Finished, Prefilled
from nanovllm.generation.params import SamplingParams
from nanovllm.gpu import GpuPathError, available
from nanovllm.gpu import availability as gpu_availability
from nanovllm.gpu.decoder import FusedDecoder
from nanovllm.gpu.engine import GpuEngine
from nanovllm.llm import paged_engines
from nanovllm.llm.engine_options import GPU_KV_SHARE, EngineOptions
from nanovllm.llm.read_options import read_dtype
from nanovllm.llm.scoring import salt_of, scoring
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.attention import paged_attention
from nanovllm.paging.store import PagedStore, carry_out
from nanovllm.performance.buffers import HostInputs
from nanovllm.performance.chunks import ChunkInput
from nanovllm.performance.runner import Launch, StepRunner
from nanovllm.tokenization.tokenizer import Tokenizer
from tests.tiny_checkpoint import SMALL, TARGET, save_random

VOCAB = 40
CONFIG = ModelConfig("qwen3", VOCAB, 8, 1, 2, 1, 8, 16, 64, qk_norm=True, eos_token_ids=(2,))
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
Job = tuple[int, list[int], SamplingParams]  # the step before which it arrives, prompt, parameters


def uncaptured(function: Callable[[], None], pool: object) -> tuple[Callable[[], None], object]:
    return function, pool


def gpu_engine(model: torch.nn.Module, config: EngineConfig, **options: object) -> GpuEngine:
    return make(partial(GpuEngine, capture=uncaptured), model, config, **options)


def make(
    kind: Callable[..., Engine],
    model: torch.nn.Module,
    config: EngineConfig,
    num_blocks: int = 40,
    tokenizer: Tokenizer | None = None,
    **of_store: object,
) -> Engine:
    store = PagedStore(model.config, num_blocks, 4, **of_store)
    return kind(model, config, store=store, tokenizer=tokenizer, clock=lambda: 0.0)


def run(
    engine: Engine, jobs: list[Job], aborts: dict[int, list[int]] | None = None
) -> list[EngineEvent]:
    """All events; arrivals and aborts (ids by step) as told, the books checked at each step."""
    events, step, last = [], 0, max(arrival for arrival, _, _ in jobs)
    while engine.has_unfinished or step <= last:
        for number, (arrival, prompt, params) in enumerate(jobs):
            if arrival == step:
                engine.add_request(prompt, params, seed=number, request_id=number)
        for request_id in (aborts or {}).get(step, ()):
            engine.abort(request_id)
        events += engine.step()
        engine.check()
        step += 1
    return events


def answers(events: list[EngineEvent]) -> dict[tuple[int, int], object]:
    """What became of each sample."""
    return {
        (event.request_id, event.index): event.completion if isinstance(event, Finished) else None
        for event in events
        if isinstance(event, Finished | Failed | Aborted)
    }


def in_torch(self: FusedDecoder, token_ids, positions, cache, batch):
    """What the kernels compute, by lab 05's attention; rows of padding are left out."""
    most = int((batch.context_lens > 0).sum())
    count = int(batch.query_start_loc[most])

    def attend(layer, q, k, v):
        cache.write(layer, k, v, batch.slot_mapping[:count])
        tables, lengths = batch.block_tables[:most], batch.context_lens[:most]
        width = -(-int(lengths.max()) // cache.block_size)
        starts = batch.query_start_loc[: most + 1]
        real = replace(batch, slot_mapping=batch.slot_mapping[:count], context_lens=lengths,
                       block_tables=tables[:, :width], query_start_loc=starts,
                       max_context_len=int(lengths.max()))  # fmt: skip
        return paged_attention(q, cache.k[layer], cache.v[layer], real)

    hidden = torch.zeros(len(token_ids), self.config.hidden_size)
    if count:
        hidden[:count] = self.model(token_ids[:count], positions[:count], attend)
    return hidden


@pytest.fixture
def torch_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FusedDecoder, "forward", in_torch)


def tiny_model(config: ModelConfig = CONFIG, seed: int = 3) -> torch.nn.Module:
    """Random weights so far apart that greedy text varies, and depends on what was read."""
    model = dummy_model(config, seed)
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(std=0.7, generator=generator)
    return model


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return tiny_model()


class TestSameEvents:
    def test_greedy_arrivals_while_others_run(self, model: torch.nn.Module) -> None:
        """In the interpreter: chunks of prompts, decodes, both in one step, more than a bucket."""
        jobs = [
            (arrival, [3 + i] * (2 + 3 * i), replace(GREEDY, max_tokens=3 + i))
            for i, arrival in enumerate([0, 0, 2, 3])
        ]
        config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=6)
        expected = run(make(Engine, model, config), jobs)
        engine = gpu_engine(model, config)
        assert run(engine, jobs) == expected
        assert engine.flights.rows_taken == engine.flights.rows_launched > 8

    @pytest.mark.usefixtures("torch_kernels")
    @pytest.mark.parametrize("caching", [True, False], ids=["prefixes cached", "not cached"])
    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.few(2)
    def test_random_requests_in_a_pool_with_room(self, model, caching, seed) -> None:
        """Stop tokens, end of sequence, prompts that begin alike, samples, every parameter."""
        rng = random.Random(seed)
        jobs = random_jobs(rng)
        config = EngineConfig(
            max_num_seqs=rng.randint(2, 6),
            max_num_batched_tokens=rng.randint(6, 40),
            max_chunk=rng.choice([None, 5]),
            policy=rng.choice(["fcfs", "sjf", "round-robin"]),
        )
        options = {"num_blocks": 200, "enable_prefix_caching": caching}
        expected = run(make(Engine, model, config, **options), jobs)
        assert run(gpu_engine(model, config, **options), jobs) == expected

    @pytest.mark.usefixtures("torch_kernels")
    @pytest.mark.parametrize("preemption", ["recompute", "swap"])
    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.few(2)
    def test_random_requests_where_blocks_are_short(self, model, preemption, seed) -> None:
        """Preempted again and again, given up at any moment: those that finish say the same."""
        rng = random.Random(100 + seed)
        jobs = random_jobs(rng, longest_answer=34)
        aborts = {rng.randrange(30): [rng.randrange(len(jobs))] for _ in range(3)}
        config = EngineConfig(max_num_seqs=5, max_num_batched_tokens=rng.randint(8, 24))
        swap = {"preemption": preemption, "num_host_blocks": rng.choice([3, 30])}
        expected = answers(run(make(Engine, model, config, num_blocks=200), jobs))
        engine = gpu_engine(model, config, num_blocks=rng.randint(15, 17), **swap)
        events = run(engine, jobs, aborts)
        found = answers(events)
        assert any(isinstance(event, Preempted) for event in events)
        assert found.keys() == expected.keys()
        given_up = {e.request_id for e in events if isinstance(e, Aborted)}
        assert {k: v for k, v in found.items() if k[0] not in given_up} == {
            k: v for k, v in expected.items() if k[0] not in given_up
        }
        assert engine.flights.rows_taken > 0

    @pytest.mark.usefixtures("torch_kernels")
    def test_logprobs_and_seeded_samples(self, model: torch.nn.Module) -> None:
        params = [
            SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=6, n=3),
            SamplingParams(temperature=0, logprobs=2, max_tokens=6, ignore_eos=True),
            GREEDY,
        ]
        jobs = [(i, [4, 9, 4 + i, 7, 7, 8], each) for i, each in enumerate(params)]
        config = EngineConfig(max_num_seqs=4)
        expected = answers(run(make(Engine, model, config), jobs))
        found = answers(run(gpu_engine(model, config), jobs))
        assert len(found) == 5
        for place, completion in expected.items():
            assert found[place].token_ids == completion.token_ids
        for mine, theirs in zip(found[1, 0].logprobs, expected[1, 0].logprobs, strict=True):
            assert mine.keys() == theirs.keys()
            assert [v.logprob for v in mine.values()] == pytest.approx(
                [v.logprob for v in theirs.values()], abs=1e-4
            )

    @pytest.mark.usefixtures("torch_kernels")
    def test_stop_strings(self) -> None:
        tokenizer = Tokenizer.from_pretrained(TARGET)
        config = replace(CONFIG, vocab_size=tokenizer.vocab_size, hidden_size=16)
        model = tiny_model(config, seed=4)
        whole = [(0, [5, 6, 7], replace(GREEDY, max_tokens=20))]
        free = answers(run(make(Engine, model, EngineConfig(), tokenizer=tokenizer), whole))
        text = free[0, 0].text
        stop = text[len(text) // 2 : len(text) // 2 + 2]
        wishes = [(), (stop,), ()]
        jobs = [
            (i, [5, 6, 7], replace(GREEDY, max_tokens=20, stop=w)) for i, w in enumerate(wishes)
        ]
        expected = run(make(Engine, model, EngineConfig(), tokenizer=tokenizer), jobs)
        assert run(gpu_engine(model, EngineConfig(), tokenizer=tokenizer), jobs) == expected
        assert answers(expected)[1, 0].stop_reason == stop

    @pytest.mark.usefixtures("torch_kernels")
    def test_a_batch_larger_than_the_largest_graph(self, model, monkeypatch) -> None:
        monkeypatch.setattr(
            "nanovllm.performance.ahead_engine.StepRunner", partial(StepRunner, largest_bucket=2)
        )
        config, jobs = EngineConfig(max_num_seqs=7), [(0, [5 + i], GREEDY) for i in range(7)]
        engine = gpu_engine(model, config)
        assert engine.runner.graphs.buckets == (1, 2)
        assert run(engine, jobs) == run(make(Engine, model, config), jobs)


def random_jobs(rng: random.Random, longest_answer: int = 22) -> list[Job]:
    """Most greedy, as then flights take off; some prompts begin alike."""
    shared = [rng.randrange(3, VOCAB) for _ in range(14)]
    kinds = [{"temperature": 0.0}] * 8 + [
        {"temperature": 0.0, "stop_token_ids": [7, 11, 20, 31]},
        {"temperature": 1.0, "n": 3},
        {"temperature": 0.8, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 1.2, "top_k": 9},
        {"temperature": 0.0, "min_tokens": 4},
        {"temperature": 0.0, "repetition_penalty": 1.4},
    ]
    jobs = []
    for _ in range(9):
        own = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 12))]
        prompt = shared[: rng.choice([0, 0, 8, 13])] + own
        params = SamplingParams(max_tokens=rng.randint(4, longest_answer), **rng.choice(kinds))
        jobs.append((rng.randrange(14), prompt, params))
    return jobs


def log_of(engine: GpuEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the engine does from now on: launches by kind, reads by the number of the launch."""
    log: list[str] = []
    numbers: dict[int, int] = {}
    kept = []  # so that no id is used twice

    def noting(kind: str) -> None:
        start = getattr(engine.runner, kind)

        def launch(*args: object) -> Launch:
            launched = start(*args)
            kept.append(launched)
            numbers[id(launched)] = len(numbers)
            log.append(f"{kind} {numbers[id(launched)]}")
            return launched

        monkeypatch.setattr(engine.runner, kind, launch)

    noting("decode")
    noting("compute")
    read = Launch.read

    def reading(self: Launch) -> list[int]:
        log.append(f"read {numbers[id(self)]}")
        return read(self)

    monkeypatch.setattr(Launch, "read", reading)
    return log


@pytest.mark.usefixtures("torch_kernels")
class TestFlights:
    def test_the_next_decode_is_launched_before_the_last_is_read(self, model, monkeypatch) -> None:
        engine = gpu_engine(model, EngineConfig())
        log = log_of(engine, monkeypatch)
        run(engine, [(0, [3, 4, 5], replace(GREEDY, max_tokens=4))])
        assert log == ["compute 0", "decode 1", "read 0", "decode 2", "read 1", "decode 3",
                       "read 2", "read 3"]  # fmt: skip

    def test_a_prompt_is_read_beside_a_flight_that_goes_on(self, model, monkeypatch) -> None:
        engine = gpu_engine(model, EngineConfig())
        log = log_of(engine, monkeypatch)
        run(engine, [(0, [3, 4], replace(GREEDY, max_tokens=4)), (1, [7, 8], GREEDY)])
        assert log[:9] == ["compute 0", "decode 1", "read 0", "compute 2", "decode 3", "read 1",
                           "read 2", "decode 4", "read 3"]  # fmt: skip
        assert engine.flights.rows_taken == engine.flights.rows_launched == 3 + 7

    def test_the_row_of_a_request_that_stops_is_dropped(self, model) -> None:
        prompts = [[3, 4], [9, 9, 9]]
        free = answers(run(make(Engine, model, EngineConfig()), [(0, p, GREEDY) for p in prompts]))
        stop = free[0, 0].token_ids[3]
        assert stop not in (*free[0, 0].token_ids[:3], *free[1, 0].token_ids)
        params = replace(GREEDY, stop_token_ids=[stop])
        engine = gpu_engine(model, EngineConfig())
        found = answers(run(engine, [(0, p, params) for p in prompts]))
        assert found[0, 0].token_ids == free[0, 0].token_ids[:4]
        assert found[1, 0].token_ids == free[1, 0].token_ids
        assert (engine.flights.rows_launched, engine.flights.rows_taken) == (4 + 7, 3 + 7)

    def test_a_request_that_is_given_up_leaves_the_others_flying(self, model) -> None:
        jobs = [(0, [3, 4], GREEDY), (0, [9, 9, 9], GREEDY)]
        engine = gpu_engine(model, EngineConfig())
        found = run(engine, jobs, aborts={3: [0]})
        assert found == run(make(Engine, model, EngineConfig()), jobs, aborts={3: [0]})
        assert (engine.flights.rows_launched, engine.flights.rows_taken) == (3 + 7, 2 + 7)

    def test_nothing_flies_where_somebody_would_have_to_give_way(self, model) -> None:
        engine = gpu_engine(model, EngineConfig(), num_blocks=2)
        engine.add_request([3, 4, 5], replace(GREEDY, max_tokens=6))
        engine.add_request([6, 7, 8], replace(GREEDY, max_tokens=6))
        engine.step()  # both prompts, and room for one token more: a block each
        assert engine.flights.rows_launched == 2
        engine.step()  # each decodes into the last slot of its block
        assert engine.flights.rows_launched == 2
        engine.check()

    @pytest.mark.parametrize("wish", [{"logprobs": 1}, {"presence_penalty": 0.1},
                                      {"logit_bias": {3: 1.0}}, {"min_tokens": 9}])  # fmt: skip
    def test_nothing_flies_beside_a_request_that_needs_lab_03s_sampler(self, model, wish) -> None:
        params = [replace(GREEDY, max_tokens=9), replace(GREEDY, max_tokens=9, **wish)]
        jobs = [(0, [3 + i], each) for i, each in enumerate(params)]
        engine = gpu_engine(model, EngineConfig())
        run(engine, jobs)
        assert engine.flights.rows_launched == 0

    def test_a_flight_of_another_slot_is_not_taken(self, model) -> None:
        engine = gpu_engine(model, EngineConfig())
        engine.add_request([3, 4, 5], GREEDY, request_id=0)
        for _ in range(3):
            engine.step()
        [(request, row)] = engine._flight.rows.items()
        engine._flight.rows[request] = replace(row, slot=row.slot + 4)
        taken = engine.flights.rows_taken
        engine.step()
        assert engine.flights.rows_taken == taken
        done = [e for e in engine.run() if isinstance(e, Finished)]
        expected = answers(run(make(Engine, model, EngineConfig()), [(0, [3, 4, 5], GREEDY)]))
        assert done[0].completion == expected[0, 0]

    def test_of_who_was_admitted_or_preempted_nothing_is_taken(self, model) -> None:
        engine = gpu_engine(model, EngineConfig())
        for prompt in ([3, 4, 5], [7, 8]):
            engine.add_request(prompt, GREEDY)
        for _ in range(3):
            engine.step()
        plan, store = engine.scheduler.schedule(), engine.store
        first, second = engine._flight.rows
        assert engine._flight.places(plan, store) == {first: 0, second: 1}
        for moved in ("admitted", "preempted"):
            other = replace(plan, **{moved: (first,)})
            assert engine._flight.places(other, store) == {second: 1}
        assert engine._flight.places(replace(plan, chunks=plan.chunks[:1]), store) == {first: 0}

    def test_a_row_of_nan_fails_alone(self) -> None:
        model = tiny_model()
        jobs = [(0, [3, 4], GREEDY), (0, [9, 9, 9], GREEDY), (2, [5, 6], GREEDY)]
        free = answers(run(make(Engine, model, EngineConfig()), jobs))
        bad = free[0, 0].token_ids[3]
        kept = {place: free[place] for place in [(1, 0), (2, 0)]}
        assert all(bad not in completion.token_ids for completion in kept.values())
        model.embed_tokens.weight.data[bad] = torch.nan  # the output matrix is another
        expected = run(make(Engine, model, EngineConfig()), jobs)
        events = run(gpu_engine(model, EngineConfig()), jobs)
        assert answers(events) == {(0, 0): None, **kept}
        failures = [[e for e in told if isinstance(e, Failed)] for told in (events, expected)]
        for [failed] in failures:
            assert isinstance(failed.error, NonFiniteLogitsError)
        alike = [[e for e in told if not isinstance(e, Failed)] for told in (events, expected)]
        assert alike[0] == alike[1]

    def test_an_error_in_one_requests_draw_is_no_failure_of_the_gpu(self, model) -> None:
        wishes = [GREEDY, replace(GREEDY, logit_bias={7: 0.5}), replace(GREEDY, logprobs=1)]
        jobs, said, told = [(0, [3 + i, 4], each) for i, each in enumerate(wishes)], [], []
        watched = partial(GpuEngine, capture=uncaptured, notify=said.append)
        for engine in (make(Engine, model, EngineConfig()), make(watched, model, EngineConfig())):
            plain = engine.sampler

            def refuses(logits, rows, plain=plain):
                if any(row.params.logit_bias and len(row.output_token_ids) == 2 for row in rows):
                    raise RequestError("no token is left")
                return plain(logits, rows)

            engine.sampler = refuses
            events = run(engine, jobs)
            texts = {k: v and v.token_ids for k, v in answers(events).items()}
            told.append((texts, [type(e.error) for e in events if isinstance(e, Failed)]))
        assert told[0] == told[1] and told[0][1] == [RequestError]
        assert said == [] and not engine.went_plain
        run(engine, [(0, [5, 6], GREEDY)])
        assert engine.flights.rows_taken > 0

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
    @pytest.mark.parametrize("call", range(6))
    def test_a_read_that_is_interrupted_is_made_good(self, model, monkeypatch, error, call) -> None:
        jobs = [(0, [3, 4], GREEDY), (0, [9, 9, 9], GREEDY), (2, [5, 6], GREEDY)]
        expected = answers(run(make(Engine, model, EngineConfig()), jobs))
        engine, read, calls = gpu_engine(model, EngineConfig()), Launch.read, iter(range(99))

        def failing(self: Launch) -> list[int]:
            if next(calls) == call:
                raise error
            return read(self)

        monkeypatch.setattr(Launch, "read", failing)
        step = engine.step

        def patient() -> list[EngineEvent]:
            try:
                return step()
            except KeyboardInterrupt:
                engine.check()
                return step()

        monkeypatch.setattr(engine, "step", patient)
        assert answers(run(engine, jobs)) == expected


class LateStream:
    """Work in order, each piece done only when somebody waits for it: as late as a GPU may."""

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self.longest = 0

    def add(self, work: Callable[[], None]) -> Callable[[], None]:
        """Queue some work; what is returned waits for it."""
        self._work.append(work)
        self.longest = max(self.longest, len(self._work))

        def wait() -> None:
            while work in self._work:
                self._work.pop(0)()

        return wait

    def delay_copies(self, store: PagedStore) -> None:
        """Have the store's copies made in this order, too."""

        def make_copies() -> None:
            due = list(store.manager.transfers)
            store.manager.transfers.clear()
            if due:
                self.add(lambda: carry_out(due, store.cache))

        store.make_copies = make_copies


class LateLaunch:
    def __init__(self, stream: LateStream, first: int, start: Callable[[], Launch]) -> None:
        self.first = first
        self._wait = stream.add(lambda: setattr(self, "_done", start()))

    def read(self) -> list[int]:
        self._wait()
        return self._done.read()

    @property
    def logits(self) -> torch.Tensor:
        self._wait()
        return self._done.logits


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateStream:
    """A device that does nothing before it must: of what the host has at a launch it sees only
    what was put into the buffers for it, and those may not be filled anew before it has."""
    stream = LateStream()
    fetched: dict[HostInputs, Callable[[], None]] = {}
    fill, send = HostInputs.fill, HostInputs.send

    def late_fill(self: HostInputs, *args: object) -> None:
        fetched.get(self, lambda: None)()
        fill(self, *args)

    def late_send(self: HostInputs, *args: object) -> None:
        fetched[self] = stream.add(lambda: send(self, *args))

    class LateRunner(StepRunner):
        @torch.inference_mode()
        def decode(self, rows, draws):
            bucket = self.graphs.rows_for(len(rows))
            self.buffers.load(rows, bucket)

            def start() -> Launch:
                with monkeypatch.context() as patch:  # they are loaded
                    patch.setattr(self.buffers, "load", lambda rows, bucket: None)
                    return StepRunner.decode(self, rows, draws)

            return LateLaunch(stream, 0, start)

        def compute(self, chunks, batch, draws):
            given = ChunkInput.of(chunks, batch)

            def start() -> Launch:
                with monkeypatch.context() as patch:
                    patch.setattr(ChunkInput, "of", lambda chunks, batch: given)
                    return StepRunner.compute(self, chunks, batch, draws)

            return LateLaunch(stream, self.buffers.max_num_seqs, start)

    monkeypatch.setattr(HostInputs, "fill", late_fill)
    monkeypatch.setattr(HostInputs, "send", late_send)
    monkeypatch.setattr("nanovllm.performance.ahead_engine.StepRunner", LateRunner)
    return stream


@pytest.mark.usefixtures("torch_kernels")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.few(2)
def test_a_device_that_is_late_computes_the_same(model, late, seed) -> None:
    rng = random.Random(200 + seed)
    jobs = random_jobs(rng, longest_answer=34)
    aborts = {rng.randrange(30): [rng.randrange(len(jobs))] for _ in range(3)}
    config = EngineConfig(max_num_seqs=5, max_num_batched_tokens=rng.randint(8, 24))
    expected = answers(run(make(Engine, model, config, num_blocks=200), jobs))
    short = {"num_blocks": rng.randint(15, 24), "preemption": rng.choice(["recompute", "swap"])}
    engine = gpu_engine(model, config, num_host_blocks=20, **short)
    late.delay_copies(engine.store)
    events = run(engine, jobs, aborts)
    given_up = {e.request_id for e in events if isinstance(e, Aborted)}
    found = answers(events)
    assert found.keys() == expected.keys()
    assert all(found[place] == expected[place] for place in found if place[0] not in given_up)
    assert late.longest >= 4  # a flight's copy and launch, behind those of the step that is read


SYNCING = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__")


class Syncs(TorchDispatchMode):
    """Operators that make the host wait for a GPU's result."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select",
                    "aten::is_nonzero", "aten::equal"):  # fmt: skip
            self.seen.append(name)
        if name == "aten::index.Tensor" and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            self.seen.append("an index of booleans")
        return function(*args, **(kwargs or {}))


def test_prompts_are_scored_as_by_the_plain_engine(model, torch_kernels) -> None:
    scored = replace(GREEDY, prompt_logprobs=2)
    rng = random.Random(8)
    jobs = [
        (
            step,
            [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 30))],
            [GREEDY, scored][i % 2],
        )
        for i, step in enumerate([0, 0, 1, 3, 3, 4])
    ]
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=12)
    told = []
    for kind in (partial(scoring(GpuEngine), capture=uncaptured), scoring(Engine)):
        events = run(make(kind, model, config, salt_of=salt_of), jobs)
        scores = {e.request_id: e.logprobs for e in events if isinstance(e, Prefilled)}
        told.append((answers(events), scores))
    (ours, found), (theirs, expected) = told
    assert ours == theirs
    for number, (_, prompt, params) in enumerate(jobs):
        if params is GREEDY:
            assert found[number] is expected[number] is None
            continue
        assert len(found[number]) == len(prompt) and found[number][0] is None
        for mine, right in zip(found[number][1:], expected[number][1:], strict=True):
            assert mine.keys() == right.keys()
            values = [right[token].logprob for token in mine]
            assert [entry.logprob for entry in mine.values()] == pytest.approx(values, abs=1e-4)


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch, seen: list[str]) -> Iterator[None]:
    """Note what would make the host wait, by operator or by a method of a tensor."""
    with monkeypatch.context() as patch, Syncs(seen):
        for name in SYNCING:
            plain = getattr(torch.Tensor, name)

            def noting(self, *args, _name=name, _plain=plain, **options):
                seen.append(f"{_name} in {sys._getframe(1).f_code.co_name}")
                return _plain(self, *args, **options)

            patch.setattr(torch.Tensor, name, noting)
        yield


class TestNoWaiting:
    @pytest.mark.parametrize("wish", [{"temperature": 0.0}, {"top_p": 0.8, "top_k": 5}])
    def test_a_step_waits_only_where_it_reads_the_tokens(self, model, monkeypatch, wish) -> None:
        """The kernels do nothing here: the interpreter would wait for itself."""
        for kernel in ("paged_decode", "paged_prefill", "rms_norm", "rope", "silu", "split_decode",
                       "store_kv"):  # fmt: skip
            path = f"nanovllm.kernels.{kernel}.launch"
            monkeypatch.setattr(path, lambda *args, **options: None)
        # What they leave unwritten would be NaN, perhaps.
        monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
        monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
        engine = gpu_engine(model, EngineConfig(max_num_seqs=4, max_num_batched_tokens=8))
        params = SamplingParams(max_tokens=12, ignore_eos=True, **wish)
        for arrival in (0, 2, 4):
            engine.add_request([3 + arrival] * 6, params)
            seen: list[str] = []
            with watching(monkeypatch, seen):
                for _ in range(2):
                    engine.step()
            assert set(seen) == {"tolist in read"}
        assert engine.flights.rows_taken > 8

    def test_the_watch_sees_what_waits(self, monkeypatch) -> None:
        seen: list[str] = []
        x = torch.tensor([1.0, 0.0])
        with watching(monkeypatch, seen):
            assert x[0].item() == 1
            x[x > 0]
            bool(x[0])
        assert len([name for name in seen if name]) >= 3
        assert "an index of booleans" in seen


@pytest.mark.usefixtures("torch_kernels")
def test_the_benchmarks_workload_runs_on_it(model: torch.nn.Module) -> None:
    prompts, outputs = [[3, 4, 5], [6] * 20, [7]], [9, 5, 12]
    engine = gpu_kernels.gpu_engine(model, prompts, outputs, capture=uncaptured)
    for temperature in (0.0, 0.6):
        assert gpu_kernels.end_to_end(engine, prompts, outputs, temperature) > 0
    assert engine.flights.rows_taken == 2 * (sum(outputs) - 3)
    model = tiny_model()
    model.lm_head.weight.data[0] = torch.nan
    broken = gpu_kernels.gpu_engine(model, prompts, outputs, capture=uncaptured)
    with pytest.raises(NonFiniteLogitsError):
        gpu_kernels.end_to_end(broken, prompts, outputs, temperature=0.0)


class TestAvailability:
    @pytest.fixture
    def gpu(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """A machine with a GPU, as far as is asked here."""
        card = SimpleNamespace(capability=(9, 0))
        monkeypatch.setattr("nanovllm.kernels.INTERPRETED", False)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: card.capability)
        return card

    @pytest.mark.usefixtures("gpu")
    def test_on_a_gpu_it_can_be_used(self) -> None:
        assert available(CONFIG, "cuda") is None
        assert available(CONFIG, torch.device("cuda", 0)) is None

    @pytest.mark.usefixtures("gpu")
    def test_another_family_or_device_cannot_use_it(self) -> None:
        assert available(CONFIG, "cpu") == "it is for CUDA GPUs, and the model is on cpu"
        gpt2 = ModelConfig("gpt2", 40, 16, 1, 4, 4, 4, 24, 32)
        assert "gpt2 has others" in available(gpt2, "cuda")

    def test_an_old_gpu_cannot(self, gpu: SimpleNamespace) -> None:
        gpu.capability = (7, 5)
        assert available(CONFIG, "cuda").endswith("capability 8.0, and this one has 7.5")

    def test_nor_kernels_that_are_interpreted_or_no_triton(self, monkeypatch) -> None:
        assert available(CONFIG, "cuda") == "lab 06's kernels run in Triton's interpreter here"
        monkeypatch.setattr(gpu_availability, "find_spec", lambda name: None)
        assert available(CONFIG, "cuda") == "Triton is not installed"

    def test_an_engine_of_another_family_is_refused(self) -> None:
        model = dummy_model(ModelConfig("gpt2", 40, 16, 1, 4, 4, 4, 24, 32), seed=1)
        with pytest.raises(GpuPathError, match="gpt2 has others"):
            gpu_engine(model, EngineConfig())


class TestChoice:
    """LLM's choice, the model said to be on a GPU."""

    @pytest.fixture
    def on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        weight = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)
        monkeypatch.setattr(paged_engines, "weight_of", lambda model: weight)
        monkeypatch.setattr("nanovllm.gpu.available", lambda config, device: None)

    @pytest.mark.usefixtures("on_a_gpu")
    def test_graphs_unless_something_else_is_asked_for(self, model, monkeypatch) -> None:
        free = EngineOptions(enforce_eager=False)
        assert paged_engines.step_kind(model, free) == "CUDA graphs"
        uncached = replace(free, enable_prefix_caching=False, block_size=8)
        assert paged_engines.step_kind(model, uncached) == "CUDA graphs"
        eager = EngineOptions(enforce_eager=True)
        assert paged_engines.step_kind(model, eager) == "plain: enforce_eager is set"
        monkeypatch.setenv("NANOVLLM_ATTENTION", "torch")
        said = "plain: attention is to run on torch's operations"
        assert paged_engines.step_kind(model, free) == said
        monkeypatch.setattr(paged_engines, "is_mine", lambda package: package == "paging")
        assert paged_engines.step_kind(model, free) == "plain: your own code of paging is to run"

    @pytest.mark.usefixtures("on_a_gpu")
    def test_a_reason_against_is_said(self, model, monkeypatch) -> None:
        monkeypatch.setattr("nanovllm.gpu.available", lambda config, device: "it rains")
        assert (
            paged_engines.step_kind(model, EngineOptions(enforce_eager=False)) == "plain: it rains"
        )

    def test_a_model_on_a_cpu_gets_no_graphs(self, model) -> None:
        kind = paged_engines.step_kind(model, EngineOptions(enforce_eager=False))
        assert "graphs" not in kind

    def test_bfloat16_is_the_default_on_a_gpu_that_has_it(self, tmp_path, monkeypatch) -> None:
        has_it = iter([True, False])
        ask = "torch.cuda.is_bf16_supported"
        monkeypatch.setattr(ask, lambda including_emulation: next(has_it) or including_emulation)
        assert read_dtype(None, tmp_path, torch.device("cuda")) is torch.bfloat16
        assert read_dtype(None, tmp_path, torch.device("cuda")) is torch.float32
        assert read_dtype(None, tmp_path, "cpu") is torch.float32
        assert read_dtype("float32", tmp_path, "cuda") is torch.float32

    def test_the_cache_takes_a_share_of_what_a_gpu_has_free(self, monkeypatch) -> None:
        free = 10 << 20
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free, 2 * free))
        options = EngineOptions(block_size=16, max_num_seqs=1000)
        blocks = options.num_blocks(160, 64, torch.device("cuda"))
        assert blocks == int(free * GPU_KV_SHARE) // (16 * 64) < 1000 * 10
        assert options.num_blocks(160, 64) == 1000 * 10  # on a CPU: 1 GiB is more than enough
        given = EngineOptions(kv_cache_memory_bytes=4096, block_size=16)
        assert given.num_blocks(160, 64, torch.device("cuda")) == 4

    @pytest.mark.usefixtures("torch_kernels")
    def test_llm_answers_by_it_as_without_it(self, tmp_path, monkeypatch) -> None:
        save_random(tmp_path, **SMALL)
        params = [SamplingParams(temperature=0.0, max_tokens=20), SamplingParams(max_tokens=9)]
        prompts = ["The dog", "One day a small fox"]
        plain = LLM(tmp_path, max_num_seqs=3)
        expected = plain.generate(prompts, params, use_tqdm=False)
        with monkeypatch.context() as patch:
            for module in ("paged_engines", "paged_level"):
                path = f"nanovllm.llm.{module}.step_kind"
                patch.setattr(path, lambda model, options: "CUDA graphs")

            class Uncaptured(GpuEngine):
                __init__ = partialmethod(GpuEngine.__init__, capture=uncaptured)

            patch.setattr("nanovllm.gpu.engine.GpuEngine", Uncaptured)
            llm = LLM(tmp_path, max_num_seqs=3)
            found = llm.generate(prompts, params, use_tqdm=False)
        assert isinstance(llm.runner.engine, GpuEngine)
        assert llm.rung.describe(llm.runner.engine).startswith("the step is CUDA graphs; ")
        assert [o.outputs for o in found] == [o.outputs for o in expected]
        assert llm.runner.engine.flights.rows_taken > 0
        assert [piece.text for piece in llm.stream("The dog", params[0])] == [
            piece.text for piece in plain.stream("The dog", params[0])
        ]
