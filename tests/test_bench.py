"""`nanovllm bench` on tiny settings: what is counted, recorded and drawn; never how fast."""

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import growth, planning_cost
from nanovllm.batching.events import ChunkRun, Stepped
from nanovllm.bench import compare_policies, memory
from nanovllm.bench.assisted import Example, Lookup
from nanovllm.bench.contestants import Ready, Settings, started
from nanovllm.bench.forced import Forced, judge
from nanovllm.bench.limits import Limits
from nanovllm.bench.loop import peak_bytes
from nanovllm.bench.machine import describe, require_quiet
from nanovllm.bench.models import SIZES, filled_tokenizer, model_folder
from nanovllm.bench.process import ContestantError, Process
from nanovllm.bench.progression import yours
from nanovllm.bench.rounds import Rounds, agreement
from nanovllm.bench.stats import median_ratio
from nanovllm.bench.workload import random_workload
from nanovllm.llm import OptionError
from nanovllm.model.accounting import generation_flops, matmul_parameters, step_bytes
from nanovllm.model.loader import load_config
from nanovllm.tokenization.tokenizer import Tokenizer
from tests.processes import ROOT, run, run_apart
from tests.tiny_checkpoint import SMALL, TARGET, save_random


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench-model")
    save_random(folder, **SMALL | {"max_position_embeddings": 512})
    return folder


def size_of(picture):
    with Image.open(picture) as image:
        return image.size


class TestWorkload:
    def test_lengths_and_ids_are_those_asked_for(self):
        workload = random_workload(50, 200, (3, 9), (2, 5))
        assert {len(job.prompt) for job in workload.jobs} == set(range(3, 10))
        assert {job.max_tokens for job in workload.jobs} == set(range(2, 6))
        assert {i for job in workload.jobs for i in job.prompt} == set(range(50))
        assert workload == random_workload(50, 200, (3, 9), (2, 5))
        assert workload.jobs != random_workload(50, 200, (3, 9), (2, 5), seed=1).jobs
        other = workload.variant(1, 50)
        assert all(a.prompt[0] != b.prompt[0] and len(a.prompt) == len(b.prompt)
                   for a, b in zip(workload.jobs, other.jobs, strict=True))  # fmt: skip
        assert workload.output_tokens == sum(job.max_tokens for job in workload.jobs)

    def test_made_models_are_kept(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
                 "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
                 "intermediate_size": 32}  # fmt: skip
        monkeypatch.setitem(SIZES, "tiny", small)
        folder = model_folder("tiny")
        made = (folder / "model.safetensors").stat()
        assert load_config(folder).tie_embeddings and load_config(folder).vocab_size == 64
        assert (model_folder("tiny") / "model.safetensors").stat() == made
        assert model_folder("bundled") == TARGET
        with pytest.raises(OptionError, match="huge"):
            model_folder("huge")

    def test_made_models_have_a_tokenizer_that_fills_their_vocabulary(self, tmp_path):
        for size in (64, 2048, 32000):
            filled_tokenizer(size).save_pretrained(tmp_path)
            ours = Tokenizer.from_pretrained(tmp_path)
            assert len(ours.model.vocab) == ours.vocab_size == size
            texts = [ours.decode([token]) for token in range(256, size)]
            assert len(set(texts)) == len(texts)
        text = "Where is Zürich?\n42 km"
        theirs = AutoTokenizer.from_pretrained(tmp_path)
        assert ours.encode(text) == theirs.encode(text) and ours.decode(ours.encode(text)) == text


class TestRounds:
    def test_ratios_are_taken_within_rounds(self):
        assert median_ratio([10.0, 5.0, 40.0], [5.0, 2.5, 10.0]) == 2.0
        rates = Rounds("tokens/s", higher_is_better=True)
        times = Rounds("seconds", higher_is_better=False)
        for ours, theirs in ((10.0, 5.0), (6.0, 2.0), (8.0, 4.0)):
            rates.add("nanovllm", ours), rates.add("peer", theirs)
            times.add("nanovllm", theirs), times.add("peer", ours)
        assert rates.summary()["peer"]["reference_is_better_by"] == 2.0
        assert times.summary()["peer"]["reference_is_better_by"] == 2.0
        assert rates.summary()["nanovllm"]["median"] == 8.0

    def test_agreement_counts_whole_texts(self):
        texts = {"nanovllm": [[1, 2], [3]], "peer": [[1, 2], [4]]}
        assert agreement(texts) == {"nanovllm": 1.0, "peer": 0.5}


@pytest.mark.parametrize(("given", "gib"), [(1, "1"), (1 << 30, "1"), ((1 << 30) + 1, "2")])
def test_vllm_gets_whole_gib_for_k_and_v_and_never_none(given: int, gib: str) -> None:
    settings = Settings("model", kv_cache_memory_bytes=given)
    assert settings.environment("vllm")["VLLM_CPU_KVCACHE_SPACE"] == gib


class TestContestants:
    @pytest.mark.proof
    def test_plain_and_transformers_give_the_same_texts(self, model):
        settings = Settings(str(model), dtype="float32", max_num_seqs=4)
        workload = random_workload(400, 3, (4, 20), (2, 6))
        names = ["nanovllm", "transformers-static"]
        with started(names, settings) as ready:
            texts = {name: one.run(workload)["token_ids"] for name, one in ready.items()}
            assert ready["nanovllm"].facts["step"] == "plain: enforce_eager is set"
            torch = ready["nanovllm"].facts["torch_import_seconds"]
            assert 0 < torch < ready["nanovllm"].first_token_seconds
            assert ready["transformers-static"].facts["transformers"]
            for one in ready.values():
                assert 1e8 < one.process.ask("memory")["peak_bytes"] < 4e9
                assert 0 < one.first_token_seconds <= one.ready_seconds
        assert texts["nanovllm"] == texts["transformers-static"]
        assert [len(text) for text in texts["nanovllm"]] == [j.max_tokens for j in workload.jobs]

    def test_a_process_that_dies_tells_its_last_words(self):
        code = "import sys; input(); sys.exit('no such model')"
        with (
            Process("peer", [sys.executable, "-c", code], threads=1) as process,
            pytest.raises(ContestantError, match=r"peer cannot load: .*no such model"),
        ):
            process.ask("load")

    def test_what_a_contestant_prints_does_not_reach_the_pipe(self):
        code = (
            "from nanovllm.bench.loop import serve\n"
            "class Loud:\n"
            "    def load(self): print('hello'); return {}\n"
            "    def settle(self): pass\n"
            "    def run(self, jobs): print('working'); return [[1] for _ in jobs]\n"
            "serve(Loud())"
        )
        with Process("loud", [sys.executable, "-c", code], threads=1) as process:
            assert process.ask("load")["facts"] == {}
            assert process.ask("run", jobs=[{}, {}])["token_ids"] == [[1], [1]]
            with pytest.raises(ContestantError, match="how to do 'dance'"):
                process.ask("dance")

    @pytest.mark.parametrize(("name", "says"), [
        ("ollama", "not known"), ("vllm", "--vllm-python"), ("llama.cpp-q8_0", "--llama-python"),
    ])  # fmt: skip
    def test_those_that_cannot_start(self, name, says):
        with pytest.raises(OptionError, match=says):
            Settings("model").check([name])

    def test_peers_need_their_adapters(self, monkeypatch, tmp_path):
        monkeypatch.setattr("nanovllm.bench.contestants._ADAPTERS", tmp_path)
        with pytest.raises(OptionError, match="this copy of the course does not have"):
            Settings("model").check(["transformers"])

    def test_peak_memory_is_this_process_and_not_its_parent(self):
        big = bytearray(300_000_000)
        code = "from nanovllm.bench.loop import peak_bytes; print(peak_bytes())"
        with Process("child", [sys.executable, "-c", code], threads=1) as process:
            assert int(process.process.stdout.readline()) < 2e8
        assert len(big) < peak_bytes()


class TestMemory:
    CONFIG = load_config(TARGET)

    def test_paged_wastes_little_and_fills_the_pool(self):
        sizes = {"kv_tokens": 8192, "max_model_len": 2048, "count": 60}
        found, samples = memory.compare(self.CONFIG, **sizes)
        slots, blocks = found["contiguous"], found["paged"]
        assert blocks.internal_waste < 0.04 and blocks.stored > 0.9
        assert slots.sequences == pytest.approx(4.0, abs=0.01) and slots.stored < 0.4
        assert blocks.sequences > 3 * slots.sequences and blocks.steps < slots.steps
        assert all(s.stored <= s.held <= s.total for each in samples.values() for s in each)

    def test_a_step_waits_for_room_only_with_budget_left(self):
        step = Stepped((ChunkRun(0, 0, 0, 5),), 1, 2, 8, 3, 0.0, 1.0)
        assert memory.waits_for_room(step, 8) and not memory.waits_for_room(step, 5)

    def test_plenty_of_room_is_no_measurement(self):
        with pytest.raises(ValueError, match="Nobody waited"):
            memory.compare(self.CONFIG, kv_tokens=1 << 16, max_model_len=64, count=4)


class TestPolicies:
    def test_continuous_beats_static_and_short_jobs_first_waits_least(self):
        found = compare_policies.compare(count=80, rate=20.0)
        assert set(found) == {"steady", "bursty", "heavy-tailed"}
        for runs in found.values():
            assert len(runs) == 8
            assert runs["fcfs"].throughput > runs["static batches"].throughput
            assert runs["fcfs"].ttft_p50 < runs["static batches"].ttft_p50
        bursty = found["bursty"]
        assert bursty["priority"].urgent_ttft_p99 < 0.5 * bursty["fcfs"].urgent_ttft_p99
        assert bursty["sjf"].ttft_p50 == min(run.ttft_p50 for run in bursty.values())

    def test_the_command(self, tmp_path):
        done = run("bench", "policies", "--requests", 20, "--out", tmp_path / "p.json",
                   "--plot", tmp_path / "p.png")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("round-robin") == 3 and "Bursty arrivals" in done.stdout
        assert set(json.loads((tmp_path / "p.json").read_text())["results"]["steady"]) >= {"sjf"}
        assert size_of(tmp_path / "p.png")[0] > 1000


class TestForced:
    def test_each_token_is_judged_behind_its_own_past(self, model):
        oracle = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        workload = random_workload(oracle.config.vocab_size, 2, (5, 9), (6, 6))
        right = []
        for job in workload.jobs:
            ids = torch.tensor([job.prompt])
            made = oracle.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False)
            right.append(made[0, len(job.prompt) :].tolist())
        wrong = [[*answer[:-1], (answer[-1] + 1) % oracle.config.vocab_size] for answer in right]
        found = judge(model, workload, {"right": right, "wrong": wrong, "first": right[:1]})
        assert found["right"] == Forced(12, 1.0, 0.0)
        assert found["wrong"].argmax_share == 10 / 12 and found["wrong"].largest_gap > 0
        assert found["first"] == Forced(6, 1.0, 0.0)


def test_a_share_is_the_median_of_the_rounds_under_the_tighter_limit():
    limits, seconds = Limits("float32", 1), Rounds("seconds", higher_is_better=False)
    limits.bytes_per_second, limits.flops_per_second = [10.0, 20.0, 10.0], [100.0, 100.0, 1.0]
    for second in (4.0, 5.0, 200.0):
        seconds.add("one", second)
    assert limits.shares(seconds, bytes_=20) == {"one": 0.2}  # 2/4, 1/5, 2/200
    assert limits.shares(seconds, bytes_=20, flops=100) == {"one": 0.5}  # 2/4, 1/5, 100/200
    assert Rounds("tokens/s", True, {"one": [5.0]}).each(20).values == {"one": [4.0]}


class TestCommands:
    def test_throughput(self, model, tmp_path):
        out, plot = tmp_path / "t.json", tmp_path / "t.png"
        done = run("bench", "throughput", "-m", model, "--requests", 4, "--rounds", 2,
                   "--threads", 1, "--out", out, "--plot", plot)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "round 2, nanovllm" in done.stderr and "output tokens/s" in done.stdout
        record = json.loads((tmp_path / "t.json").read_text())
        assert len(record["results"]["output_tokens_per_second"]["nanovllm"]["rounds"]) == 2
        assert record["results"]["workload"]["requests"] == 4
        limits, config = record["results"]["limits"], load_config(model)
        jobs = random_workload(config.vocab_size, 4).jobs
        assert limits["flops"] == sum(
            generation_flops(config, len(job.prompt), job.max_tokens, cached=True) for job in jobs
        )
        assert len(limits["flops_per_second"]) == 2 and "flops" in done.stdout
        forced = record["results"]["teacher_forced"]["nanovllm"]
        assert forced["tokens"] == record["results"]["workload"]["output_tokens"][1]
        assert forced["argmax_share"] > 0.9 and "are the argmax" in done.stdout
        assert str(model.parent) not in json.dumps(record)
        assert size_of(tmp_path / "t.png")[0] > 500

    def test_latency(self, model, tmp_path):
        done = run("bench", "latency", "-m", model, "--rounds", 2, "--prompt-tokens", 20,
                   "--output-tokens", 4, "--threads", 1, "--out", tmp_path / "l.json",
                   "--plot", tmp_path / "l.png")  # fmt: skip
        assert done.returncode == 0, done.stderr
        record = json.loads((tmp_path / "l.json").read_text())["results"]
        assert {len(record[k]["nanovllm"]["rounds"]) for k in ("ttft_seconds", "tpot_seconds")} == {
            2
        }
        assert record["engines"]["nanovllm"]["peak_bytes"] > 1e8
        shares = record["limits"]["shares"]
        assert all(0 < shares[name]["nanovllm"] < 20 for name in ("of products", "of memory"))
        assert record["limits"]["bytes"] == step_bytes(load_config(model), 1, 20 + 2, 2)
        assert size_of(tmp_path / "l.png")[0] > 500

    @pytest.mark.proof
    def test_latency_with_guesses_tells_their_acceptance_length(self, tmp_path):
        guesses = json.dumps({"method": "draft_model", "model": str(TARGET.parent / "draft")})
        done = run("bench", "latency", "-m", "bundled", "--rounds", 1, "--prompt-tokens", 20,
                   "--output-tokens", 24, "--threads", 1, "--dtype", "float32",
                   "--speculative-config", guesses, "--peer", "nanovllm-plain",
                   "--peer", "transformers-assisted", "--out", tmp_path / "l.json")  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "l.json").read_text())["results"]["engines"]
        assert 1 < found["nanovllm"]["mean_acceptance_length"] <= 5
        assert "mean_acceptance_length" not in found["nanovllm-plain"]
        length = f"{found['nanovllm']['mean_acceptance_length']:.2f}"
        assert f"acceptance length {length}" in done.stdout
        assert "transformers-assisted" in done.stdout

    @pytest.mark.proof
    def test_memory(self, tmp_path):
        done = run("bench", "memory", "--requests", 40, "--kv-tokens", 8192, "--out",
                   tmp_path / "m.json", "--plot", tmp_path / "m.png")  # fmt: skip
        assert done.returncode == 0, done.stderr
        record = json.loads((tmp_path / "m.json").read_text())["results"]
        assert record["real_run"]["paged"]["internal_waste"] < 0.04
        assert record["real_run"]["paged"]["stored"] > record["real_run"]["contiguous"]["stored"]
        assert size_of(tmp_path / "m.png")[0] > 500

    @pytest.mark.proof
    def test_speculative(self, tmp_path):
        done = run("bench", "speculative", "--batch", 1, "--prompts", "stories", "--rounds", 2,
                   "--guesses", 3, "--max-tokens", 9, "--peers", "--out", tmp_path / "s.json",
                   "--plot", tmp_path / "s.png")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "batch 1, stories" in done.stderr and "reached" in done.stdout
        record = json.loads((tmp_path / "s.json").read_text())
        assert record["settings"]["draft"] == "draft"
        rows = {row["way"]: row for row in record["results"]["rows"]}
        assert list(rows) == ["draft", "ngram", "policy", "HF draft", "HF ngram"]  # fmt: skip
        for way in ("draft", "ngram"):  # the counts of transformers
            assert rows[way]["tokens"] == rows[f"HF {way}"]["tokens"] >= 1
            assert rows[way]["bound"] > 0 and len(rows[way]["seconds"]["none"]) == 2
        assert rows["draft"]["forwards"] > 1 and rows["policy"]["bound"] is None
        assert size_of(tmp_path / "s.png")[0] > 500

    def test_lookup_of_vllm_is_told_by_its_steps_and_its_times(self):
        class Answers:
            """Guessing takes half the steps of not guessing, and half the processor's time."""

            def __init__(self, steps: int) -> None:
                self.each, self.steps, self.asked = steps, 0, []

            def ask(self, do, jobs=()):
                if do == "memory":
                    return {"steps": self.steps}
                self.asked.append(jobs)
                self.steps += self.each
                texts = [[0] * job["max_tokens"] for job in jobs]
                return {"seconds": 3.0, "cpu_seconds": self.each, "token_ids": texts}

        alone, guessing = Answers(8), Answers(4)
        ready = {"vllm": Ready(alone, {}, 0, 0), "vllm-ngram": Ready(guessing, {}, 0, 0)}
        texts = [[5, 6], [7], [8, 9, 1]]
        row = Lookup(ready).row("sums", [[1], [2, 3], [4]], texts, rounds=3, batch=2)
        assert (row.way, row.batch, row.tokens, row.faster, row.faster_wall) == (
            "vLLM ngram", 2, 2.0, 2.0, 1.0
        )  # fmt: skip
        assert row.seconds == {"none": [16.0] * 3, "vLLM ngram": [8.0] * 3} and row.bound is None
        first, second = alone.asked[:2]  # of the first round, which warms up
        assert first == [{"prompt": [1], "max_tokens": 2}, {"prompt": [2, 3], "max_tokens": 1}]
        assert second == [{"prompt": [4], "max_tokens": 3}] and len(guessing.asked) == 2 * (3 + 1)

    def test_example_of_llama_is_told_by_what_it_says(self, tmp_path):
        program = tmp_path / "example"
        program.write_text(
            '#!/bin/sh\ncase "$*" in\n'
            "*'-t 3 -td 3'*draft-simple*) "
            "echo 'decoded 12 tokens in 0.012 seconds, n_accept  = 9' >&2;;\n"
            "*) echo 'decoded 10 tokens in 0.020 seconds, n_accept  = 0' >&2;; esac\n"
        )
        program.chmod(0o700)
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\necho weights-of $3.gguf\n")
        python.chmod(0o700)
        folders = tmp_path / "target", tmp_path / "draft"
        row = Example(str(program), str(python), folders, 4, 10, 3).row("sums", "ab", 3)
        assert (row.way, row.tokens, row.faster) == ("llama.cpp draft", 4.0, pytest.approx(2.0))
        assert row.seconds["none"] == pytest.approx([0.002] * 3)
        program.write_text("#!/bin/sh\necho other words >&2\n")
        with pytest.raises(ContestantError, match="other words"):
            Example(str(program), str(python), folders, 4, 10, 3).row("sums", "a", 1)

    def test_guesses_that_are_given(self, model, tmp_path):
        done = run("bench", "speculative", "-m", model, "--batch", 2, "--prompts", "lists",
                   "--rounds", 1, "--max-tokens", 8, "--out", tmp_path / "s.json")  # fmt: skip
        assert done.returncode == 0, done.stderr
        rows = json.loads((tmp_path / "s.json").read_text())["results"]["rows"]
        assert [row["way"] for row in rows] == ["80%", "80%, policy", "60%", "60%, policy"]
        assert rows[0]["tokens"] >= rows[2]["tokens"] > 1

    def test_quantization(self, model, tmp_path):
        done = run("bench", "quantization", "-m", model, "-b", 1, "-b", 3, "--rounds", 3,
                   "--steps", 2, "--threads", 1, "--dtype", "float32", "--out",
                   tmp_path / "q.json", "--plot", tmp_path / "q.png")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "3 at once" in done.stderr and "w8a8" in done.stdout
        record = json.loads((tmp_path / "q.json").read_text())
        assert record["settings"]["model"] == model.name
        rows = record["results"]["rows"]
        assert [(row["batch"], row["format"]) for row in rows] == [
            (batch, name) for batch in (1, 3) for name in ("float32", "int8", "int4", "w8a8")
        ]
        for row in rows:
            assert len(row["wall"]) == len(row["cpu"]) == 3 and row["faster"] > 0
            assert row["step"] == "plain: enforce_eager is set" and row["of_memory"] > 0
        config = load_config(model)
        weights = matmul_parameters(config) + config.vocab_size * config.hidden_size
        plain, int8, int4, _ = (row["bytes"] for row in rows[:4])
        assert 1 < plain / (4 * weights) < 1.2 and plain > int8 > int4
        assert size_of(tmp_path / "q.png")[0] > 500

    def test_progression(self, model, tmp_path):
        out, plot = tmp_path / "p.json", tmp_path / "p.png"
        done = run("bench", "progression", "-m", model, "--requests", 4, "--rounds", 1, "--seats",
                   2, "--threads", 1, "--out", out, "--plot", plot)  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "p.json").read_text())["results"]["stages"]
        assert [s["name"] for s in found][:5] == [
            "recompute", "KV cache", "static batches", "continuous", "paged"
        ]  # fmt: skip
        assert all(stage["same_answers"] and not stage["mine"] for stage in found[:5])
        assert "not here" in found[5]["why_not"]
        assert found[-1]["name"] == "speculative"
        assert found[-1]["same_answers"], found[-1]["why_not"]

    @pytest.mark.proof
    def test_progression_marks_the_students_labs(self, model, tmp_path):
        for package in ("generation", "batching"):
            shutil.copytree(ROOT / "solutions" / "nanovllm" / package, tmp_path / package)
        path = tmp_path / "batching" / "scheduler.py"
        text = path.read_text("utf-8")
        at = text.index("        while", text.index("def _admit("))
        error = '        raise NotImplementedError("lab04 task 4: Scheduler._admit")\n'
        path.write_text(text[:at] + error + text[at:], "utf-8")
        done = run_apart("bench", "progression", "-m", model, "--requests", 2, "--rounds", 1,
                         "--threads", 1, "--out", tmp_path / "p.json",
                         env={"NANOVLLM_MINE": str(tmp_path), "NANOVLLM_CODE": ""})  # fmt: skip
        assert done.returncode == 0, done.stderr
        stages = json.loads((tmp_path / "p.json").read_text())["results"]["stages"]
        found = {stage["name"]: stage for stage in stages}
        assert [s["name"] for s in found.values() if s["mine"]] == [
            "KV cache", "static batches", "continuous"
        ]  # fmt: skip
        assert "lab04 task 4: Scheduler._admit" in found["continuous"]["why_not"]
        assert found["static batches"]["rates"] and "yours" in done.stdout

    def test_a_stage_names_the_packages_that_it_runs(self, monkeypatch):
        monkeypatch.setattr("nanovllm.bench.progression.is_mine", lambda package: True)
        assert yours("compiled") == yours("paged") == ["model", "generation", "batching", "paging"]
        assert yours("kernels") == [*yours("paged"), "kernels"]
        assert yours("speculative") == [*yours("paged"), "speculative"]

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            (["throughput", "--peer", "ollama"], "ollama"),
            (["throughput", "--peer", "vllm"], "--vllm-python"),
            (["throughput", "--model", "/no/folder"], "/no/folder"),
            (["latency", "--dtype", "int3"], "int3"),
            (["latency", "--speculative-config", "ngram"], "--speculative-config is not JSON"),
            (["latency", "--speculative-config", '{"method": "eagle"}'], "'eagle' is not known"),
            (["progression", "--rounds", "0"], "rounds"),
            (["speculative", "--prompts", "poems"], "poems"),
            (["quantization", "-m", "bundled", "--rounds", "900"], "900 rounds of 4 steps"),
            (["throughput", "--out", "/no/folder/x.json"], "there is no folder /no/folder"),
            (["latency", "--out", "/tmp"], "--out /tmp is a folder"),
            (["memory", "--plot", "x.foo"], "--plot x.foo must end in .png"),
            (["speed"], "speed"),
        ],
    )
    def test_what_cannot_be_done_is_one_sentence(self, args, says):
        done = run("bench", *args)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.startswith("nanovllm: ") and done.stderr.count("\n") == 1
        assert says in done.stderr


def test_replay_of_a_run(model, tmp_path):
    page = tmp_path / "run.html"
    prompts = ["The dog " * 12, "The dog " * 12 + "ran", "a"]
    done = run("generate", *prompts, "-m", model, "--max-tokens", 5, "--ignore-eos",
               "--max-num-seqs", 1, "--replay", page)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "request 2 ..........▪▪▪▪▪" in done.stderr and str(page) in done.stderr
    assert "16 before them found in the cache" in page.read_text("utf-8")
    done = run("generate", "a", "-m", model, "--replay", tmp_path / "run.txt")
    assert done.returncode == 2 and ".html" in done.stderr


def test_planning_is_recorded_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(planning_cost, "PLANS", {
        "running": (planning_cost.by_running, [2, 4]),
        "finished": (planning_cost.by_finished, [0, 3]),
        "blocks": (planning_cost.by_blocks, [2000]), "waiting": (planning_cost.by_waiting, [2]),
    })  # fmt: skip
    lines = []
    found = planning_cost.run(tmp_path, quick=True, report=lines.append)["results"]
    assert list(found["microseconds_a_step"]["running"]) == [2, 4]
    assert list(found["share_of_a_step"]) == ["plain"]  # the compiled step is off in tests
    assert sum(found["share_of_a_step"]["plain"].values()) == pytest.approx(1.0)
    assert json.loads((tmp_path / "planning_cost.json").read_text())["results"] is not None
    assert size_of(tmp_path / "planning_cost.png")[0] > 1000


def test_the_machine_is_described_and_no_path_is_told(monkeypatch):
    words = [f"{ROOT}/benchmarks/run.py", "--vllm-python", f"{ROOT}/bin/python", f"--out={ROOT}/x"]
    monkeypatch.setattr(sys, "argv", words)
    machine = describe()
    assert machine["command"] == ["run.py", "--vllm-python", "python", "--out=x"]
    assert machine["cpus"] >= 1 and machine["packages"]["torch"] and machine["python"]
    assert str(ROOT) not in json.dumps(machine)


def test_a_busy_machine_makes_no_record_unless_told(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (3.4, 0.1, 0.1))
    with pytest.raises(SystemExit, match=r"load of this machine is 3\.4.*--anyway"):
        require_quiet()
    require_quiet(anyway=True)
    monkeypatch.setattr("os.getloadavg", lambda: (0.4, 9.9, 9.9))
    require_quiet()


@pytest.mark.proof
def test_growth_in_cells(tmp_path):
    """Every cell is measured and drawn."""
    words = ["--threads", "1", "--rounds", "1", "--contexts", "64", "--together", "1", "2"]
    command = [sys.executable, "-m", "benchmarks.growth", *words, "--anyway", "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "growth-tiny.json").read_text())["results"]
    assert [(row["context"], row["together"], row["shared"]) for row in results["cells"]] == [
        (64, 1, False), (64, 2, False), (64, 2, True)
    ]  # fmt: skip
    for row in results["cells"]:
        for key in ("tokens_per_second", "prompts", "step"):
            assert row["engines"]["nanovllm"][key][0] > 0
    assert size_of(tmp_path / "growth-tiny.png")[0] > 500


@pytest.mark.proof
def test_endurance_in_portions(tmp_path):
    words = ["--model", "bundled", "--requests", "4", "--threads", "1", "--anyway"]
    command = [sys.executable, "-m", "benchmarks.endurance", *words, "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "endurance.json").read_text())["results"]
    assert len(results["tokens_per_second"]) == 1
    assert 50 < results["peak_mb"][0] <= results["at_once"]["peak_mb"] < 5000
    assert size_of(tmp_path / "endurance.png")[0] > 500


def test_what_growth_leaves_out():
    ready, said = {}, SimpleNamespace(contexts=[512], together=[1, 4, 1024], rounds=1)
    seconds = {growth.Cell(512, 1, False): 3.0, growth.Cell(512, 4, False): 8.0}
    assert growth.foretold(growth.Cell(512, 1024, False), seconds) == 2048
    assert growth.foretold(growth.Cell(512, 4, True), seconds) == 0
    said.together = [1024]
    done, left_out = growth.measure(ready, said, 99, bytes_a_token=1 << 15)
    assert done == [] and left_out == [
        "1024 x 512: K and V of 16 GiB", "1024 x 512, begin alike: K and V of 16 GiB"
    ]  # fmt: skip


@pytest.mark.proof
def test_formats_side_by_side(tmp_path):
    """Without the peers, which need environments of their own."""
    words = ["--model", "tiny", "--rounds", "1", "--requests", "2", "--threads", "1"]
    command = [sys.executable, "-m", "benchmarks.quantized_speed", *words, "--anyway"]
    command += ["--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "quantized-speed.json").read_text())["results"]
    everybody = {f"nanovllm {kind}" for kind in ("bfloat16", "int8", "int4", "w8a8")}
    assert set(results["engines"]) == everybody
    assert [set(figure) for figure in results["figures"].values()] == [everybody] * 3
    assert size_of(tmp_path / "quantized-speed.png")[0] > 500
