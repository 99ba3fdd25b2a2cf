"""`LLM` on each lab's engine: the same answers everywhere, and plain words for what is missing."""

import re
import shutil
from dataclasses import fields

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.batching.events import Stepped
from nanovllm.llm import OptionError, engine_levels, paged_store
from nanovllm.llm.engine_levels import LADDER, choose
from nanovllm.llm.engine_options import EngineOptions
from tests.processes import ROOT, run, run_apart
from tests.tiny_checkpoint import SMALL, save_random

RUNGS = [level.name for level in LADDER]
PROMPTS = [
    "The dog",
    "a",
    "One day a small fox went to the river and",
    "1 2 3 4 5 6 7",
    "東京タワー",
]
REFERENCE = ROOT / "solutions" / "nanovllm"
BELOW_THE_ENGINE = ("tokenization", "model", "generation")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rungs-model")
    save_random(folder, **SMALL)
    return folder


@pytest.fixture(scope="module")
def llms(checkpoint):
    return {name: LLM(checkpoint, engine=name, max_num_seqs=3) for name in RUNGS}


def answers(llm, params, prompts=PROMPTS):
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [
        (a.index, a.text, a.token_ids, a.finish_reason, a.stop_reason)
        for output in outputs
        for a in output.outputs
    ]


GREEDY = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True}
SEEDED = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True, "seed": 11}


class TestSameAnswers:
    @pytest.mark.parametrize("rung", RUNGS[:-1])
    @pytest.mark.parametrize(
        "params",
        [GREEDY, SEEDED, SEEDED | {"n": 4}, {"temperature": 0.7, "top_p": 0.9, "seed": 3}],
        ids=["greedy", "seeded", "samples", "truncated"],
    )
    @pytest.mark.few(3)
    def test_of_many_prompts(self, llms, rung, params):
        """Five prompts in batches of three: some of them are in no batch with another."""
        params = SamplingParams(**params)
        assert answers(llms[rung], params) == answers(llms["paged"], params)

    @pytest.mark.parametrize("rung", RUNGS)
    @pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
    def test_streamed_alone_and_read_in_turn(self, llms, rung, params):
        params = SamplingParams(**params)
        expected = answers(llms["paged"], params, PROMPTS[:3])
        streams = [llms[rung].stream(prompt, params) for prompt in PROMPTS[:3]]
        pieces = [list(streams[0]), *map(list, zip(*streams[1:], strict=True))]
        told = [pieces[0], *zip(*pieces[1:], strict=True)]
        for steps, (_, text, ids, *_) in zip(told, expected, strict=True):
            assert "".join(step.text for step in steps) == text
            assert [i for step in steps for i in step.token_ids] == ids
            assert steps[-1].output.outputs[0].text == text
            assert steps[-1].kv_tokens == len(steps[-1].output.prompt_token_ids) + 19

    @pytest.mark.parametrize("rung", RUNGS)
    def test_stop_strings(self, llms, rung):
        (free,) = llms["paged"].generate("The", SamplingParams(**GREEDY), use_tqdm=False)
        text = free.outputs[0].text
        stop = text[len(text) // 2 : len(text) // 2 + 3]
        params = [SamplingParams(**GREEDY, stop=stop), SamplingParams(**GREEDY)]
        cut, whole = answers(llms[rung], params, ["The", "The"])
        assert cut[1] == text[: text.index(stop)] and cut[3:] == ("stop", stop)
        assert whole[1] == text

    @pytest.mark.parametrize("rung", RUNGS)
    def test_requests_without_a_seed_draw_from_the_engines(self, checkpoint, rung):
        params = SamplingParams(temperature=1.0, max_tokens=8)
        first, other = (LLM(checkpoint, seed=5, engine=name) for name in (rung, "paged"))
        assert answers(first, params) == answers(other, params)

    @pytest.mark.parametrize("rung", RUNGS)
    def test_beam_search(self, llms, rung):
        found, expected = (
            llms[name].beam_search(PROMPTS[:2], beam_width=3, max_tokens=6)
            for name in (rung, "paged")
        )
        assert [[a.token_ids for a in o.outputs] for o in found] == [
            [a.token_ids for a in o.outputs] for o in expected
        ]

    @pytest.mark.parametrize("rung", RUNGS)
    def test_progress_and_numbers(self, llms, rung):
        bars = []

        class Bar:
            def __init__(self, total, desc):
                self.total, self.done = total, 0
                bars.append(self)

            def update(self, n):
                self.done += n

            def set_postfix_str(self, text): ...
            def close(self): ...

        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        outputs = llms[rung].generate(PROMPTS, params, use_tqdm=Bar)
        assert [(bar.total, bar.done) for bar in bars] == [(5, 5)]
        for output in outputs:
            assert 0 < output.metrics.ttft <= output.metrics.latency
            assert output.metrics.generation_tokens == 4


class TestStaticEngine:
    PARAMS = SamplingParams(**GREEDY)

    def test_who_comes_later_waits_for_the_batch(self, llms):
        llm = llms["static"]
        heard = []
        llm.runner.on_event = lambda event: heard.append(event.request_id)
        first = llm.stream("The dog", self.PARAMS)
        next(first)
        llm.generate("a", self.PARAMS, use_tqdm=False)
        rest = list(first)
        llm.runner.on_event = None
        assert rest[-1].finished and len(set(heard)) == 2
        assert heard == sorted(heard)  # all of the first before any of the second

    def test_a_stream_that_is_left_ends_its_batch_or_its_row(self, llms):
        llm = llms["static"]
        expected = answers(llm, self.PARAMS, ["a"])
        left, kept = llm.stream("The dog", self.PARAMS), llm.stream("a", self.PARAMS)
        next(left), next(kept)
        left.close()
        assert "".join(step.text for step in kept) != ""
        alone = llm.stream("The dog", self.PARAMS)
        next(alone)
        alone.close()
        assert not llm.runner.engine.has_unfinished
        assert answers(llm, self.PARAMS, ["a"]) == expected

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
    def test_a_step_that_does_not_end_is_told_and_harms_nothing(self, checkpoint, error):
        llm = LLM(checkpoint, engine="static")
        before = answers(llm, self.PARAMS)
        other = llm.stream("b", self.PARAMS)

        def fail(*_):
            raise error("in the model")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(llm.model, "logits", fail)
            with pytest.raises(error, match="in the model"):
                answers(llm, self.PARAMS)
        with pytest.raises(RuntimeError, match="The engine stopped"):
            next(other)
        assert answers(llm, self.PARAMS) == before


class TestChoice:
    def test_the_best_that_is_here(self, checkpoint, monkeypatch):
        gone = {}
        monkeypatch.setattr(engine_levels, "why_missing", gone.get)
        assert (choose().name, choose().why_not_higher) == ("paged", None)
        gone["lab05"] = "lab05 is away."
        assert (choose().name, choose().why_not_higher) == ("continuous", "lab05 is away")
        gone["lab04"] = "lab04 is away."
        assert (choose().name, choose().why_not_higher) == ("static", "lab04 is away")
        with pytest.raises(OptionError, match=r"'paged' cannot be made: lab04 is away\."):
            LLM(checkpoint, engine="paged")
        assert LLM(checkpoint).engine_name == "static batches (lab03)"

    def test_every_name_can_be_asked_for(self, llms):
        assert [llm.engine_name for llm in llms.values()] == [
            "static batches (lab03)",
            "continuous batching on slots (lab04)",
            "paged continuous batching (lab05)",
        ]
        with pytest.raises(OptionError, match="use static, continuous, paged"):
            choose("fast")

    @pytest.mark.parametrize(
        ("rung", "option", "needed"),
        [
            ("static", {"max_num_batched_tokens": 64}, "lab04"),
            ("static", {"scheduling_policy": "sjf"}, "lab04"),
            ("static", {"block_size": 32}, "lab05"),
            ("continuous", {"block_size": 16}, "lab05"),
            ("continuous", {"num_gpu_blocks_override": 8}, "lab05"),
            ("continuous", {"kv_cache_memory_bytes": 1 << 20}, "lab05"),
            ("continuous", {"enable_prefix_caching": True}, "lab05"),
        ],
    )
    def test_an_option_of_a_higher_lab_is_refused(self, checkpoint, rung, option, needed):
        (name,) = option
        with pytest.raises(OptionError, match=rf"^{name} needs {needed} \(\w+\), but the engine"):
            LLM(checkpoint, engine=rung, **option)

    def test_an_option_that_every_engine_can_honour_is_not(self, checkpoint):
        LLM(checkpoint, engine="static", max_num_seqs=2, enforce_eager=True)
        LLM(checkpoint, engine="continuous", enable_prefix_caching=False, scheduling_policy="sjf")

    def test_blocks_need_no_kernels(self, monkeypatch):
        monkeypatch.delenv("NANOVLLM_ATTENTION", raising=False)
        assert paged_store.attention_backend("cuda") == "triton"
        monkeypatch.setattr(paged_store, "why_missing", {"lab06": "lab06 is away."}.get)
        assert paged_store.attention_backend("cuda") == "torch"

    def test_every_option_named_is_one(self):
        assert set(engine_levels.OPTIONS_OF) <= {field.name for field in fields(EngineOptions)}

    def test_slots_are_as_many_as_fit_into_memory(self, checkpoint, monkeypatch):
        llm = LLM(checkpoint, engine="continuous", max_num_seqs=4)
        store = llm.runner.engine.store
        assert (store.num_slots, store.capacity) == (4, 96)
        monkeypatch.setattr("nanovllm.llm.engine_options.DEFAULT_KV_BYTES", store.nbytes // 2)
        small, steps = LLM(checkpoint, engine="continuous", max_num_seqs=4), []
        small.runner.on_event = steps.append
        params = SamplingParams(**SEEDED)
        assert answers(small, params) == answers(llm, params)
        assert max(step.running for step in steps if isinstance(step, Stepped)) == 2

    @pytest.mark.parametrize(("rung", "says"), [
        ("static", "the step is plain; batches of up to 3 samples"),
        ("continuous", "the step is plain; 3 slots of 96 tokens"),
        ("paged", "the step is plain: enforce_eager is set; 18 blocks of 16 tokens, "
                  "prefixes are cached"),
    ])  # fmt: skip
    def test_the_engine_describes_itself(self, llms, rung, says):
        llm = llms[rung]
        assert llm.rung.describe(llm.runner.engine) == says


class TestCommand:
    """`nanovllm` with the labs of a student alone."""

    @pytest.fixture
    def mine(self, tmp_path):
        for package in BELOW_THE_ENGINE:
            shutil.copytree(REFERENCE / package, tmp_path / package)
        return tmp_path

    @staticmethod
    def generate(checkpoint, mine, *args):
        return run_apart("generate", "The dog", "-m", checkpoint, "--max-tokens", 8, *args,
                   env={"NANOVLLM_MINE": str(mine), "NANOVLLM_CODE": "mine"})  # fmt: skip

    @pytest.mark.parametrize(
        ("more", "note"),
        [
            ((), "static batches (lab03, yours): lab04 is not started"),
            (("batching",), "continuous batching on slots (lab04, yours): lab05 is not started"),
            (("paging",), "static batches (lab03, yours): lab04 is not started"),
            (("batching", "paging"), ""),
        ],
        ids=["01-03", "01-04", "01-03 and 05", "01-05"],
    )
    def test_the_labs_that_are_there_answer(self, checkpoint, llms, mine, more, note):
        for package in more:
            shutil.copytree(REFERENCE / package, mine / package)
        done = self.generate(checkpoint, mine)
        (expected,) = answers(
            llms["paged"], SamplingParams(temperature=0.0, max_tokens=8), ["The dog"]
        )
        assert (done.returncode, done.stdout) == (0, expected[1] + "\n"), done.stderr
        assert ("the engine is " in done.stderr) == bool(note)
        assert note in done.stderr

    @pytest.mark.parametrize(
        ("line", "error"),
        [("import nowhere", "ModuleNotFoundError"), ("def broken(:", "SyntaxError")],
    )
    def test_a_lab_that_is_there_but_broken_is_not_passed_over(self, checkpoint, mine, line, error):
        shutil.copytree(REFERENCE / "batching", mine / "batching")
        path = mine / "batching" / "engine.py"
        path.write_text(f"{line}\n{path.read_text('utf-8')}", "utf-8")
        done = self.generate(checkpoint, mine)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"your code raised {error}" in done.stderr
        assert re.search(r"batching/engine\.py:1\b", done.stderr)

    def test_a_lab_that_is_begun_can_be_done_without(self, checkpoint, mine):
        shutil.copytree(ROOT / "labs" / "lab04" / "stubs", mine / "batching")
        begun = self.generate(checkpoint, mine)
        assert begun.returncode == 2
        assert begun.stderr.startswith("nanovllm: lab04 task ")
        assert self.generate(checkpoint, mine, "--engine", "static").returncode == 0

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            (["generate", "a", "--replay", "run.html"], "--replay needs lab04 (batching)"),
            (["generate", "a", "--block-size", "8"], "block_size needs lab05 (paging)"),
            (["serve", "--port", "0"], "nanovllm serve needs lab04 (batching)"),
        ],
    )
    def test_what_needs_a_higher_lab_says_which(self, checkpoint, args, says):
        done = run(*args, "-m", checkpoint, "--engine", "static")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"nanovllm: {says}") and done.stderr.count("\n") == 1
        assert done.stderr.endswith("(lab03): engine='static' asks for it.\n")
