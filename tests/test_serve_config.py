"""`nanovllm serve --config`: options from a YAML file; what is wrong is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from nanovllm.llm.engine_levels import choose
from nanovllm.llm.engine_options import EngineOptions, kv_room
from nanovllm.llm.read_options import OptionError
from tests.processes import run


def shown(*args: object) -> dict:
    done = run("serve", "--print-config", *args)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


@pytest.fixture
def file(tmp_path: Path):
    path = tmp_path / "server.yaml"

    def write(text: str) -> Path:
        path.write_text(text, "utf-8")
        return path

    return write


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(file) -> None:
    path = file(
        "max-num-seqs: 8\nblock_size: 32\nport: 9000\ntimeout: 5\nenable-prefix-caching: false\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 2}\n"
    )
    found = shown("--config", path, "--port", 9100)
    assert found["max-num-seqs"] == 8 and found["block-size"] == 32
    assert found["port"] == 9100 and found["timeout"] == 5.0
    assert found["enable-prefix-caching"] is False and found["swap-space"] == 0
    assert found["speculative-config"] == {"method": "ngram", "num_speculative_tokens": 2}
    plain = shown()
    assert plain["max-num-seqs"] == EngineOptions().max_num_seqs and plain["port"] == 8000


def test_what_is_printed_is_a_file_that_says_the_same(file) -> None:
    words = ["--swap-space", 0.5, "--adaptive-token-budget", "--log-level", "error",
             "--journal", "requests.db", "--evidence", "seen.json"]  # fmt: skip
    first = shown(*words, "--allowed-origins", "http://a.org", "--allowed-origins", "http://b.org")
    assert first["allowed-origins"] == ["http://a.org", "http://b.org"]
    assert shown("--config", file(yaml.safe_dump(first))) == first


def test_a_printed_file_means_the_same_engine(file) -> None:
    first = shown("--supervise")
    assert first["executor-timeout"] == 30.0 and first["distributed-executor-backend"] == "mp"
    assert shown("--config", file(yaml.safe_dump(first))) == first
    lower = shown("--engine", "continuous")
    assert "block-size" not in lower and "max-num-batched-tokens" in lower
    choose("continuous").check_options({n.replace("-", "_"): v for n, v in lower.items()})


def test_secrets_are_not_printed(monkeypatch) -> None:
    monkeypatch.setenv("NANOVLLM_API_KEY", "s3cret")
    done = run("serve", "--print-config")
    assert done.returncode == 0 and "s3cret" not in done.stdout + done.stderr


BAD = {
    "max-num-seq: 3": "did you mean max-num-seqs?",
    "allowed-origins: http://a.org": "must be a list of texts",
    "allowed-origins: [1]": "must be a list of texts",
    "colour: red": "has no option 'colour' to give",
    "config: other.yaml": "has no option 'config'",
    "api-key: s3": "secrets come from the environment: take it out, and set NANOVLLM_API_KEY",
    "max-num-seqs: 3\nmax-num-seqs: 4": "max-num-seqs stands there twice",
    "max-num-seqs: 3\nmax_num_seqs: 4": "with - and with _; give it once",
    "max-num-seqs: many": "must be a whole number, got 'many'",
    "max-num-seqs: 2.5": "must be a whole number, got 2.5",
    "max-num-seqs: true": "must be a whole number, got True",
    "max-num-seqs:": "must be a whole number, got None",
    "enforce-eager: 1": "must be true or false, got 1",
    "served-model-name: 7": "must be a text, in quotes",
    "max-num-seqs: 0": "max_num_seqs must be a whole number, at least 1",
    "port: 99999": "less than or equal to 65535",
    "- a": "must hold lines such as",
    "a: [": "is not YAML that can be used",
    "num-gpu-blocks-override: 4\nkv-cache-memory-bytes: 9": "both say how large the cache is",
    "swap-space: 1000000": "but this machine has",
    "gpu-memory-utilization: 2": "gpu_memory_utilization must be above 0, to 1; got 2",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_files_are_one_sentence(file, text: str) -> None:
    done = run("serve", "--print-config", "--config", file(text))
    assert done.returncode == 2 and BAD[text] in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = run("serve", "--config", tmp_path / "none.yaml")
    assert done.returncode == 2 and "cannot be read: No such file" in done.stderr


def test_the_share_of_a_gpu_counts_what_is_in_use(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (600, 1000))
    assert (kv_room("cuda"), kv_room("cuda", 0.9), kv_room("cuda", 1)) == (480, 500, 600)
    with pytest.raises(OptionError, match=r"0\.40 of the GPU's memory is in use before K and V"):
        kv_room("cuda", 0.3)
    with pytest.raises(OptionError, match="is for a CUDA GPU, but the device is cpu"):
        kv_room("cpu", 0.9)
