"""The command `nanovllm` as a person or a pipe meets it: in processes of its own, some in a pty."""

import ast
import json
import os
import re
import resource
import shutil
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

from grader.course.lab_toml import labs
from nanovllm import LLM, SamplingParams
from nanovllm.cli.conversation import Conversation
from nanovllm.cli.errors import explain
from nanovllm.cli.meter import Meter
from nanovllm.cli.screen import safe
from nanovllm.generation.errors import RequestError
from nanovllm.outputs import StreamOutput
from tests.processes import ROOT, Terminal, environment, plain, run, run_apart
from tests.tiny_checkpoint import SMALL, save_random

STATUS = re.compile(
    r"\d+ tokens, [\d.-]+ tokens/s, TTFT \d+ ms, KV cache \d+/96 tokens, [\d./]+ MB"
    r"(, first token [\d.]+ s \+ [\d.]+ s of torch after the start)?"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli-model")
    save_random(folder, **SMALL)
    return folder


@pytest.fixture(scope="module")
def llm(model):
    return LLM(model)


def in_shell(words):
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"'{sys.executable}' -m nanovllm.cli {words}"],
        capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=400,
    )  # fmt: skip


def greedy(llm, prompt, max_tokens=8):
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text


class TestStart:
    def test_help_is_quick_and_loads_no_torch(self):
        spent = []  # processor time: the clock on the wall depends on the neighbours
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            shown = subprocess.run(
                [sys.executable, "-m", "nanovllm.cli", "--help"],
                capture_output=True, text=True, cwd=ROOT, env=environment(),
            )  # fmt: skip
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert shown.returncode == 0
            assert "generate" in shown.stdout and "chat" in shown.stdout
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert min(spent) < 1.0
        code = (
            "import sys, nanovllm.cli; print([m for m in ('torch', 'jinja2') if m in sys.modules])"
        )
        loaded = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
        )
        assert loaded.stdout.strip() == "[]"

    @pytest.mark.parametrize("command", ["generate", "chat"])
    def test_help_of_commands(self, command):
        shown = run(command, "--help")
        assert shown.returncode == 0
        for option in ("--model", "--max-tokens", "--temperature", "--top-k", "--min-p", "--stop",
                       "--logit-bias", "--seed", "--code", "--ignore-eos"):  # fmt: skip
            assert option in shown.stdout

    def test_version(self):
        import nanovllm

        assert run("--version").stdout == f"nanovllm {nanovllm.__version__}\n"


class TestGenerate:
    def test_one_prompt_streams_plain_text(self, model, llm):
        done = run("generate", "The dog", "-m", model, "--max-tokens", 8)
        assert done.returncode == 0
        assert done.stdout == safe(greedy(llm, "The dog")) + "\n"
        assert STATUS.fullmatch(done.stderr.strip())

    def test_the_prompt_may_come_over_a_pipe(self, model, llm):
        done = run("generate", "-m", model, "--max-tokens", 8, stdin="The dog\n")
        assert done.stdout == safe(greedy(llm, "The dog")) + "\n"

    def test_several_prompts(self, model, llm):
        done = run("generate", "The dog", "[red]a[/red] 東京", "-m", model, "--max-tokens", 8)
        expected = [("The dog", greedy(llm, "The dog")), ("[red]a[/red] 東京", None)]
        expected[1] = (expected[1][0], greedy(llm, expected[1][0]))
        assert done.stdout == "".join(
            f"[{i}] {prompt}\n{safe(text)}\n\n" for i, (prompt, text) in enumerate(expected, 1)
        )
        assert re.fullmatch(
            r"2 prompts, \d+ prompt tokens, \d+ tokens generated in [\d.]+ s, [\d.]+ tokens/s\n",
            done.stderr,
        )

    def test_json(self, model, llm):
        done = run("generate", "The dog", "a", "-m", model, "--max-tokens", 8, "--json",
                   "--logprobs", 2)  # fmt: skip
        first, second = map(json.loads, done.stdout.splitlines())
        assert done.stderr.strip().count("\n") == 0
        assert (first["prompt"], second["prompt"]) == ("The dog", "a")
        answer = first["outputs"][0]
        assert answer["text"] == greedy(llm, "The dog")
        assert len(answer["logprobs"]) == len(answer["token_ids"])
        assert first["metrics"]["generation_tokens"] == len(answer["token_ids"])
        assert first["finished"] is True

    def test_files(self, model, llm, tmp_path):
        lines = tmp_path / "prompts.txt"
        lines.write_text("The dog\r\n\na\n", "utf-8")
        done = run("generate", "-f", lines, "-m", model, "--max-tokens", 4, "--json")
        assert [json.loads(line)["prompt"] for line in done.stdout.splitlines()] == ["The dog", "a"]
        objects = tmp_path / "prompts.jsonl"
        objects.write_text('{"prompt": "two\\nlines"}\n"text"\n{"prompt_token_ids": [5, 6]}\n')
        done = run("generate", "first", "-f", objects, "-m", model, "--max-tokens", 4, "--json")
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert [each["prompt"] for each in found] == ["first", "two\nlines", "text", None]
        assert found[3]["prompt_token_ids"] == [5, 6]
        done = run("generate", "-f", "-", "-m", model, "--max-tokens", 4, "--json", stdin="a\nb\n")
        assert len(done.stdout.splitlines()) == 2

    @pytest.mark.parametrize("stdin", [False, True])
    def test_a_byte_order_mark_is_no_part_of_a_prompt(self, model, tmp_path, stdin):
        data, file = b"\xef\xbb\xbfa\nb\n", tmp_path / "prompts.txt"
        file.write_bytes(data)
        words = ["-m", model, "--max-tokens", 1, "--json", "--file", "-" if stdin else file]
        lines = run("generate", *words, stdin=data).stdout.splitlines()
        assert [json.loads(line)["prompt"] for line in lines] == ["a", "b"]

    def test_sampling_options_arrive(self, model, llm):
        options = {
            "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.001, "seed": 7,
            "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.1,
            "min_tokens": 2, "max_tokens": 12, "n": 2,
        }  # fmt: skip
        flags = [x for k, v in options.items() for x in ("--" + k.replace("_", "-"), v)]
        more = ["--logit-bias", "9=-5", "--logit-bias", "8=2", "--stop", "z", "--stop-token-id", 11]
        done = run("generate", "a", "-m", model, "--json", "--ignore-eos", *more, *flags)
        params = SamplingParams(
            **options, ignore_eos=True, logit_bias={9: -5, 8: 2}, stop="z", stop_token_ids=[11]
        )
        (expected,) = llm.generate("a", params, use_tqdm=False)
        found = json.loads(done.stdout)["outputs"]
        assert [a["token_ids"] for a in found] == [list(a.token_ids) for a in expected.outputs]

    def test_beam(self, model, llm):
        done = run("generate", "The dog", "-m", model, "--beam", 3, "--max-tokens", 5, "--json")
        (expected,) = llm.beam_search("The dog", beam_width=3, max_tokens=5)
        found = json.loads(done.stdout)["outputs"]
        assert [a["token_ids"] for a in found] == [a.token_ids for a in expected.outputs]

    def test_chat_template(self, model):
        done = run("generate", "hi", "-m", model, "--max-tokens", 2, "--json", "--chat")
        assert len(json.loads(done.stdout)["prompt_token_ids"]) > 4

    @pytest.mark.parametrize(("prompts", "reader"), [("a", "head -c 1"), ("a b", "true")])
    def test_a_reader_that_leaves(self, model, prompts, reader):
        done = in_shell(f"generate {prompts} -m '{model}' --ignore-eos | {reader}")
        assert done.returncode == 0 and "Traceback" not in done.stderr
        assert "Exception" not in done.stderr

    @pytest.mark.parametrize("encoding", ["ascii"])
    def test_a_terminal_of_few_characters(self, model, encoding):
        done = run_apart(
            "generate", "é 東京", "a", "-m", model, "--max-tokens", 8, "--temperature", 1,
            env={"PYTHONIOENCODING": encoding},
        )  # fmt: skip
        assert done.returncode == 0 and "Traceback" not in done.stderr


class TestErrors:
    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ("a > /dev/full", "cannot be written: No space left on device"),
            ("a b --json > /dev/full", "cannot be written: No space left on device"),
            ("a >&-", "stdout is closed"),
            ("--file - <&-", "there is no prompt"),
        ],
    )
    def test_streams_that_are_closed_or_full(self, model, words, says):
        self.refused(in_shell(f"generate -m '{model}' {words}"), says)

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            ([""], "no tokens"),
            (["a", ""], "Prompt 2 of 2"),
            ([], "no prompt"),
            (["a " * 200], "96"),
            (["a", "--dtype", "int3"], "bfloat16"),
            (["a", "--device", "toaster"], "toaster"),
            (["a", "--max-model-len", "500"], "96"),
            (["a", "--temperature", "-1"], "temperature"),
            (["a", "--temperature", "nan"], "temperature"),
            (["a", "--temperature", "hot"], "--temperature"),
            (["a", "--top-p", "0"], "top_p"),
            (["a", "--max-tokens", "0"], "max_tokens"),
            (["a", "--n", "0"], "n must be"),
            (["a", "--n", "2"], "--temperature 0.8"),
            (["a", "--logit-bias", "x"], "ID=BIAS"),
            (["a", "--logit-bias", "99999=1"], "99999"),
            (["a", "--stop", ""], "stop"),
            (["a", "--beam", "0"], "beam_width"),
            (["a", "--beam", "2", "--top-k", "3"], "--top-k"),
            (["a", "--beam", "2", "--n", "3"], "--n"),
            (["a", "--length-penalty", "2"], "--beam"),
            (["a", "--max-num-seqs", "0"], "max_num_seqs"),
            (["a", "--block-size", "0"], "block_size"),
            (["a", "--scheduling-policy", "lifo"], "round-robin"),
            (["a", "--num-gpu-blocks-override", "1"], "more than the store"),
            (["a", "--no-such-option"], "--no-such-option"),
            (["a", "--code", "lab99"], "reference"),
            (["--file", "/no/such/file"], "/no/such/file"),
            (["a", "--model", "/no/such/folder"], "/no/such/folder"),
            (["a", "--model", "someone/not-cached-model"], "HF_HUB_OFFLINE"),
        ],
    )
    def test_one_sentence(self, model, args, says):
        self.refused(run("generate", "--model", model, *args), says)

    def refused(self, done, says):
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.startswith("nanovllm: ") and done.stderr.count("\n") == 1
        assert done.stderr.rstrip().endswith(".") and "Traceback" not in done.stderr
        assert says in done.stderr

    def test_unknown_command(self):
        self.refused(run("generat"), "generate")

    def test_damaged_folders(self, model, tmp_path):
        def broken(name, change):
            folder = tmp_path / name
            shutil.copytree(model, folder)
            change(folder)
            return run("generate", "a", "-m", folder)

        def family(folder):
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))

        def shard(folder):
            index = {"weight_map": {"x": "model-00001-of-00002.safetensors"}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))

        def tokenizer(folder):
            data = json.loads((folder / "tokenizer.json").read_text())
            (folder / "tokenizer.json").write_text(
                json.dumps(data | {"model": {"type": "Unigram", "vocab": []}})
            )

        def cut(folder):
            weights = folder / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:5000])

        self.refused(broken("family", family), "mamba")
        self.refused(broken("shard", shard), "model-00001-of-00002.safetensors")
        self.refused(broken("tokenizer", tokenizer), "Unigram")
        self.refused(broken("cut", cut), "cut short")
        self.refused(broken("no-config", lambda f: (f / "config.json").unlink()), "config.json")
        self.refused(broken("auto", lambda f: (f / "config.json").write_text("[")), "JSON")

    def test_bad_files(self, model, tmp_path):
        binary = tmp_path / "prompts.txt"
        binary.write_bytes(b"\xff\xfe\x00")
        self.refused(run("generate", "-m", model, "-f", binary), "UTF-8")
        self.refused(run("generate", "-m", model, "-f", tmp_path), "cannot read")
        for text, says in [("{", ":1 is not JSON"), ('"a"\n{"text": 1}', ":2 has no prompt")]:
            lines = tmp_path / "prompts.jsonl"
            lines.write_text(text)
            self.refused(run("generate", "-m", model, "-f", lines), says)

    def test_chat_refuses_over_a_pipe(self, model):
        self.refused(run("chat", "-m", model, stdin="word " * 200 + "\n"), "96")

    def test_ctrl_c(self, model, llm):
        first = safe(greedy(llm, "a", 1))[:1]
        options = ["-m", model, "--ignore-eos", "--max-tokens", 90]
        done = run_apart("generate", "a", *options, interrupt_after=first)
        assert done.returncode in (0, 130) and "Traceback" not in done.stderr


class TestStudentsCode:
    @pytest.fixture
    def mine(self, tmp_path):
        """A student's package with copies of labs 03 to 05, to be spoilt."""
        for package in ("generation", "batching", "paging"):
            shutil.copytree(ROOT / "solutions" / "nanovllm" / package, tmp_path / package)
        return tmp_path

    def spoil(self, mine, file, function, line, package="generation"):
        """Make a line the first that a function runs."""
        path = mine / package / file
        text = path.read_text("utf-8")
        found = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
        body = next(node.body for node in found if node.name == function)
        first = body[isinstance(body[0], ast.Expr) and len(body) > 1]
        lines = text.splitlines(keepends=True)
        lines.insert(first.lineno - 1, " " * first.col_offset + line + "\n")
        path.write_text("".join(lines), "utf-8")

    def generate(self, model, mine, *args, **env):
        return run_apart("generate", "a", "-m", model, "--max-tokens", 3, *args,
                   env={"NANOVLLM_MINE": str(mine), "NANOVLLM_CODE": "", **env})  # fmt: skip

    def test_a_task_that_is_not_written(self, model, mine):
        self.spoil(
            mine, "sampling.py", "sample",
            'raise NotImplementedError("lab03 task 2: sample")',
        )  # fmt: skip
        done = self.generate(model, mine, "--temperature", "1")
        assert done.returncode == 2
        assert done.stderr.startswith("nanovllm: lab03 task 2 is not written yet")
        assert ": sample (" in done.stderr and "--code reference" in done.stderr
        assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1
        assert re.search(r"generation/sampling\.py:\d+", done.stderr)
        assert (
            self.generate(model, mine, "--temperature", "1", "--code", "reference").returncode == 0
        )
        assert self.generate(model, mine, "--temperature", "1", "--code", "lab03").returncode == 2

    @pytest.mark.parametrize(
        ("whose", "package", "file", "function"),
        [
            ("lab04", "batching", "scheduler.py", "_admit"),
            ("lab04", "batching", "engine.py", "step"),
            ("lab04", "batching", "request.py", "move_to"),
            ("lab05", "paging", "block_pool.py", "allocate"),
            ("lab05", "paging", "prefix_cache.py", "lookup"),
        ],
    )
    def test_a_half_written_engine_says_what_is_missing(
        self, model, mine, whose, package, file, function
    ):
        error = f'raise NotImplementedError("{whose} task 9: {function}")'
        self.spoil(mine, file, function, error, package)
        done = self.generate(model, mine)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"nanovllm: {whose} task 9 is not written yet: {function} (")
        assert "--code reference" in done.stderr and done.stderr.count("\n") == 1

    def test_a_name_that_a_file_which_starts_empty_lacks(self):
        for lab in labs():
            symbol, task = next(iter(lab.task_of_symbol.items()))
            module, _, qualname = symbol.partition(":")
            name, home = qualname.partition(".")[0], f"nanovllm.{lab.package}.{module}"
            error = ImportError(f"cannot import name {name!r} from {home!r} (/x/y.py)")
            sentence, code = explain(error)
            assert sentence.startswith(f"{lab.key} task {task.id} is not written yet: {name} (")
            assert code == 2
        sentence, code = explain(ImportError("cannot import name 'x' from 'elsewhere' (/x/y.py)"))
        assert code == 1 and "ImportError" in sentence

    def test_an_error_in_it(self, model, mine):
        self.spoil(mine, "sampling.py", "sample", "_ = 1 / 0")
        done = self.generate(model, mine, "--temperature", "1")
        assert done.returncode == 1
        assert "your code raised ZeroDivisionError" in done.stderr
        assert re.search(r"generation/sampling\.py:\d+", done.stderr)
        assert "Traceback" not in done.stderr
        shown = self.generate(model, mine, "--temperature", "1", NANOVLLM_TRACEBACK="1")
        assert "Traceback" in shown.stderr

    def test_a_syntax_error_in_it(self, model, mine):
        self.spoil(mine, "sampling.py", "sample", "return )")
        done = self.generate(model, mine)
        assert done.returncode == 1 and "SyntaxError" in done.stderr
        assert re.search(r"generation/sampling\.py:\d+", done.stderr)

    def test_mine_without_a_lab(self, model, mine):
        done = self.generate(model, mine, "--code", "mine")
        assert done.returncode == 2 and "is not started" in done.stderr
        done = self.generate(model, mine, "--code", "lab01")
        assert done.returncode == 2 and "lab01 is not started" in done.stderr


class TestSafety:
    def force(self, llm, *characters):
        """Options that make the model say these characters and little else."""
        ids = [llm.tokenizer.encode(character)[0] for character in characters]
        return [x for i in ids for x in ("--logit-bias", f"{i}=100")]

    def test_control_characters_are_shown_not_sent(self, model, llm):
        options = ["-m", model, "--ignore-eos", "--max-tokens", 5, *self.force(llm, "\x1b")]
        done = run("generate", "a", *options)
        assert done.stdout == "␛" * 5 + "\n"
        assert "\x1b" not in run("generate", "a\x1b[2J", "b", *options).stdout
        done = run("generate", "a", "--json", *options)
        assert "\x1b" not in done.stdout and json.loads(done.stdout)["outputs"][0]["text"]

    def test_in_a_terminal(self, model, llm):
        options = ["-m", model, "--ignore-eos", "--max-tokens", 5, *self.force(llm, "\x1b")]
        with Terminal("generate", "a", *options) as terminal:
            screen, code = terminal.rest()
        assert code == 0 and "␛␛␛␛␛" in screen and "\x1b\x1b" not in screen
        with Terminal("generate", "[bold]a[/bold]\x1b[2J", "[/red]", *options) as terminal:
            screen, code = terminal.rest()
        assert code == 0 and "[bold]a[/bold]␛[2J" in plain(screen) and "[/red]" in plain(screen)

    @pytest.mark.parametrize("char", ["\x00", "\x07", "\x1b", "\x7f", "\x9b", "\r", "\u202e"])
    def test_safe(self, char):
        assert char not in safe(f"a{char}b") and len(safe(f"a{char}b")) >= 3
        assert safe("a\tb\nc é 東 🦊 👩‍👩‍👧 مرحبا") == "a\tb\nc é 東 🦊 👩‍👩‍👧 مرحبا"


class TestTerminal:
    def test_generate_shows_a_live_status_and_keeps_the_text(self, model, llm):
        options = ["-m", model, "--ignore-eos", "--max-tokens", 60]
        with Terminal("generate", "The dog", *options) as terminal:
            screen, code = terminal.rest()
        assert code == 0
        assert re.search(
            r"60 tokens · [\d.]+ tokens/s · TTFT \d+ ms · KV cache █+░* \d+/96", screen
        )
        assert screen.count("tokens/s") > 1  # it was redrawn, and erased
        text = safe(greedy_all(llm, "The dog", 60))
        final = plain(screen).replace("\r", "").replace("\n", "").replace(" ", "")
        assert text[-10:].replace(" ", "").replace("\n", "") in final
        assert screen.rstrip().endswith("m") or "MB" in screen.splitlines()[-1]
        assert screen.count("\x1b[?25h") >= screen.count("\x1b[?25l")  # the cursor is back

    def test_several_show_a_table(self, model):
        with Terminal("generate", "The dog", "a b", "-m", model, "--max-tokens", 4) as terminal:
            screen, code = terminal.rest()
        assert code == 0 and "prompt" in screen and "answer" in screen and "╰" in screen
        assert "2 prompts" in screen

    @pytest.mark.parametrize("columns", [20, 200])
    def test_widths(self, model, columns):
        options = ["-m", model, "--ignore-eos", "--max-tokens", 30]
        with Terminal("generate", "The dog", *options, columns=columns) as terminal:
            screen, code = terminal.rest()
        assert code == 0 and "tokens" in screen

    def test_chat(self, model):
        options = ["-m", model, "--ignore-eos", "--max-tokens", 8]
        with Terminal("chat", *options) as terminal:
            assert "context 96 tokens" in terminal.until("you> $")
            terminal.type("/help\n")
            assert "/reset" in terminal.until("Ctrl-C.*you> $")
            terminal.type("/nonsense\n")
            assert "no command /nonsense" in terminal.until("them.*you> $")
            terminal.type("Hello\n")
            assert re.search(r"8 tokens · .*MB", terminal.until("MB.*you> $"))
            terminal.type("/reset\n")
            assert "anew" in terminal.until("anew.*you> $")
            terminal.type("word " * 150 + "\n")
            assert "nanovllm: This message needs" in terminal.until("shorten it.*you> $")
            assert "/exit or Ctrl-D" in terminal.interrupt("leaves.*you> $")
            terminal.type("/exit\n")
            assert terminal.rest()[1] == 0

    def test_ctrl_c_stops_the_answer_and_not_the_program(self, tmp_path):
        # An answer of seconds: Ctrl-C must meet it before its end.
        save_random(tmp_path, **{**SMALL, "max_position_embeddings": 16384})
        with Terminal("chat", "-m", tmp_path, "--ignore-eos", "--max-tokens", 16000) as terminal:
            terminal.until("you> $")
            terminal.type("Hi\n")
            terminal.until("TTFT")
            terminal.type("\x03")
            assert "Traceback" not in terminal.until("stopped.*you> $")
            terminal.type("\x04")
            assert terminal.rest()[1] == 0


def greedy_all(llm, prompt, max_tokens):
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text


class TestChat:
    def test_piped(self, model, llm):
        done = run(
            "chat", "-m", model, "--max-tokens", 4, stdin="Hello\n\n/reset\nHello\n/exit\nno\n"
        )
        ask = [{"role": "user", "content": "Hello"}]
        params = SamplingParams(temperature=0.0, max_tokens=4)
        answer = llm.chat(ask, params, use_tqdm=False)[0].outputs[0].text
        assert done.returncode == 0
        assert done.stdout == (safe(answer) + "\n") * 2
        assert len(STATUS.findall(done.stderr)) == 2

    def test_history(self, model, llm):
        done = run("chat", "-m", model, "--max-tokens", 4, "--system", "Be brief",
                   stdin="Hello\nAgain")  # fmt: skip
        params = SamplingParams(temperature=0.0, max_tokens=4)
        messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}]
        first = llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text
        messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "Again"}]
        second = llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text
        assert done.stdout == f"{safe(first)}\n{safe(second)}\n"

    def test_a_later_turn_tells_what_the_cache_had(self, model):
        said = "one two three four five six seven\nAgain\n"
        done = run("chat", "-m", model, "--max-tokens", 4, stdin=said)
        first, second = done.stderr.strip().splitlines()
        assert "cache" not in first.replace("KV cache", "")
        assert second.endswith(" prompt tokens from the cache")
        done = run("chat", "-m", model, "--max-tokens", 4, "--no-enable-prefix-caching",
                   stdin=said)  # fmt: skip
        assert "from the cache" not in done.stderr

    def test_a_full_context_drops_the_oldest(self, model):
        done = run("chat", "-m", model, "--max-tokens", 12, "--ignore-eos",
                   stdin="one two three four five six\n" * 8)  # fmt: skip
        assert done.returncode == 0
        assert "is full: the oldest" in done.stderr and "/reset" in done.stderr
        assert len(STATUS.findall(done.stderr)) == 8


class TestConversation:
    def talk(self, context, room, system=None):
        def encode(messages):
            return [0] * sum(len(message["content"]) for message in messages)

        return Conversation(encode, context, room, system)

    def test_drops_whole_turns_from_the_front(self):
        talk = self.talk(context=30, room=5)
        for letter in "abcde":
            ids, dropped = talk.ask(letter * 5)
            assert len(ids) + 5 <= 30
            talk.answered(letter * 5)
            assert talk.messages[0]["role"] == "user"
        assert dropped == 2

    def test_keeps_the_system_message(self):
        talk = self.talk(context=30, room=5, system="s" * 10)
        for letter in "abcde":
            ids, _ = talk.ask(letter * 5)
            assert len(ids) + 5 <= 30 and len(ids) >= 15
            talk.answered(letter)
        talk.reset()
        assert len(talk.ask("x")[0]) == 11

    def test_a_question_that_is_too_long_changes_nothing(self):
        talk = self.talk(context=30, room=5)
        talk.ask("a")
        talk.answered("b")
        before = list(talk.messages)
        with pytest.raises(RequestError, match="30"):
            talk.ask("x" * 30)
        assert talk.messages == before
        assert len(talk.ask("x" * 29)[0]) == 29  # one token of answer is still an answer


class TestMeter:
    def test_counts_by_the_clock(self):
        now = iter([0.0, 0.5, 1.0, 1.5]).__next__
        meter = Meter(capacity=100, bytes_per_token=1000, clock=now)
        for kv in (10, 11, 12):
            meter.push(StreamOutput("x", [1], kv))
        assert meter.rate == pytest.approx(2 / 1.0)
        assert meter.plain() == (
            "3 tokens, 2.0 tokens/s, TTFT 500 ms, KV cache 12/100 tokens, 0.01/0.1 MB"
        )

    @pytest.mark.parametrize("width", [10, 40, 79, 200])
    def test_the_line_fits(self, width):
        meter = Meter(capacity=100, bytes_per_token=1000)
        for kv in range(50):
            meter.push(StreamOutput("x", [1], kv))
        assert len(meter.line(width)) <= max(width, len("50 tokens"))

    def test_generate_tells_what_the_start_took_beside_torch(self, model):
        done = run("generate", "ab", "-m", model, "--max-tokens", 3)
        assert done.returncode == 0, done.stderr
        assert re.search(
            r", first token [\d.]+ s \+ [\d.]+ s of torch after the start$", done.stderr
        )
