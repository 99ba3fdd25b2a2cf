"""`nanovllm describe`, and a real model from the hub's cache where there is one."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from nanovllm.cli import app
from nanovllm.cli.describe import parameters, rows, shape_of
from nanovllm.cli.errors import Refused

REAL = "Qwen/Qwen3-0.6B"


def test_numbers_of_a_known_shape() -> None:
    """Qwen3-0.6B by hand: its model card says 0.6 B parameters, 28 layers, 8 KV heads of 128."""
    config = shape_of("qwen3-0.6b")
    layer = 1024 * 128 * (2 * 16 + 2 * 8) + 3 * 1024 * 3072
    assert parameters(config) == 28 * layer + 151_936 * 1024
    table = {what: expect for what, expect, _ in rows(config, 2, 1000, 1e9, 1e9, (10.0, 1e6))}
    assert table["KV cache a token"] == "112 KiB"  # 2 x 28 x 8 x 128 x 2 bytes
    assert table["tokens in 1 GB"] == f"{10**9 // 114_688:,}"
    moved = 2 * parameters(config) + 1001 * 114_688
    assert table["one token, alone"] == f"{moved / 1e10 * 1e3:.3g} ms"
    assert table["tokens/s, 32 at once"] == f"{32 / ((moved + 31 * 1001 * 114_688) / 1e10):,.3g}"


@pytest.mark.parametrize("model", [[], ["--model", "tiny"]])
def test_the_command_prints_a_table(model: list[str]) -> None:
    said = CliRunner().invoke(app, ["describe", *model, "--memory-gb-s", "9", "--gflops", "99"])
    assert said.exit_code == 0, said.output
    assert "KV cache a token" in said.output and "9 GB/s, 99 GFLOP/s" in said.output


@pytest.mark.parametrize(("options", "says"), [
    (["--cards", "8", "--card", "l4", "--link", "pcie4"], "TP 4 x PP 1"),
    (["--cards", "2", "--card", "core", "--link", "gloo", "--dtype", "float32"], "has no room"),
])  # fmt: skip
def test_cards_have_a_table_of_their_own(options: list[str], says: str) -> None:
    rates = ["--memory-gb-s", "9", "--gflops", "99"]
    said = CliRunner().invoke(app, ["describe", "--model", "qwen3-0.6b", *rates, *options])
    assert said.exit_code == 0, said.output
    assert "by lab 10's cost model" in said.output and says in said.output


@pytest.mark.parametrize("option", ["--card", "--link"])
def test_a_card_or_link_that_is_not_known_is_refused(option: str) -> None:
    words = ["describe", "--memory-gb-s", "9", "--gflops", "99", "--cards", "2", option, "fast"]
    with pytest.raises(Refused, match=f"{option} fast is not known: use "):
        CliRunner().invoke(app, words, catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize(("option", "value"), [("--gflops", "nan"), ("--memory-gb-s", "-5")])
def test_a_rate_below_0_is_refused(option: str, value: str) -> None:
    said = CliRunner().invoke(app, ["describe", "--model", "mid", option, value])
    assert said.exit_code == 2 and option in said.output


def test_a_real_model_writes_what_transformers_writes() -> None:
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(REAL, "config.json"), str):
        pytest.skip(f"{REAL} is not in the hub's cache; `hf download {REAL}` brings it")
    import torch
    import transformers

    from nanovllm import LLM, SamplingParams

    prompt = "The capital of France is"
    [ours] = LLM(REAL, dtype="float32").generate(
        prompt, SamplingParams(temperature=0, max_tokens=8)
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(REAL, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(REAL)
    ids = tokenizer(prompt, return_tensors="pt")
    expected = theirs.generate(**ids, max_new_tokens=8, do_sample=False)[
        0, ids.input_ids.shape[1] :
    ]
    assert list(ours.outputs[0].token_ids) == expected.tolist()
