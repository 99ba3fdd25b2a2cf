"""Files of quantized weights: the makers' and ours; `quantization` beside the other options."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from benchmarks import quantized_files
from nanovllm import LLM, SamplingParams
from nanovllm.cli.errors import Refused, explain
from nanovllm.cli.quantize import quantize as quantize_command
from nanovllm.fast import available
from nanovllm.generation.events import Finished
from nanovllm.llm import OptionError, weight_codes
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Transformer
from nanovllm.quantization import layouts
from nanovllm.quantization.at_load import quantize_linears, round_linears
from nanovllm.quantization.checkpoint import load_quantized, save_quantized
from nanovllm.quantization.errors import QuantizationError
from nanovllm.quantization.grid import Grid, QuantizedWeight
from nanovllm.quantization.grouped import GroupedLinear
from nanovllm.quantization.held_out import held_out_rows, hidden_states
from nanovllm.quantization.linear import linears, replace_linear
from nanovllm.quantization.linear_tensors import read_linear, to_tensors
from nanovllm.quantization.methods import quantize
from nanovllm.quantization.packing import pack, unpack
from nanovllm.quantization.scheme import Scheme
from nanovllm.quantization.stored_as import StoredAs, read_config, write_config
from tests.processes import ROOT, run
from tests.readme_tables import options_beside
from tests.tiny_checkpoint import SMALL, save_random

LAYERS = Path(__file__).parent / "quantized_layers"
MODEL = ROOT / "models" / "draft"  # the smaller of the bundled models: loaded some fifty times
MADE = {  # by the makers' own code: how it is stored
    "autogptq-4": StoredAs("gptq", Scheme(4, 16)),
    "autogptq-8": StoredAs("gptq", Scheme(8, None)),
    "autogptq-4-act-order": StoredAs("gptq", Scheme(4, 16)),
    "gptqmodel-4-v2": StoredAs("gptq_v2", Scheme(4, 16)),
    "autoawq-4": StoredAs("awq", Scheme(4, 16)),
    "compressed-tensors-pack-quantized-4": StoredAs("pack-quantized", Scheme(4, 16)),
    "compressed-tensors-pack-quantized-8": StoredAs("pack-quantized", Scheme(8, None)),
    "compressed-tensors-int-quantized-8": StoredAs("int-quantized", Scheme(8, None, True)),
}
BY_CHANNEL = Scheme(8, None, True)
LLM_COMPRESSOR = {  # recipes of llm-compressor 0.14.0, whose configs lie in llm-compressor.json
    "gptq W4A16": StoredAs("pack-quantized", Scheme(4, 128, True)),
    "awq W4A16_ASYM": StoredAs("pack-quantized", Scheme(4, 128)),
    "gptq W8A16": StoredAs("pack-quantized", Scheme(8, 128, True)),
    "gptq W8A8": StoredAs("int-quantized", BY_CHANNEL, activations=True),
}
FOLDERS = {  # format, scheme, quant_method
    "int4": ("compressed-tensors", Scheme(4, 64)),
    "int4-symmetric": ("compressed-tensors", Scheme(4, 64, True)),
    "int8": ("compressed-tensors", BY_CHANNEL),
    "int3": ("compressed-tensors", Scheme(3, 32)),
    "gptq": ("gptq", Scheme(4, 64, True)),
    "gptq-v2": ("gptq", Scheme(4, 64)),
    "gptq-8": ("gptq", BY_CHANNEL),
    "awq": ("awq", Scheme(4, 64)),
    "awq-8": ("awq", Scheme(8, 128)),
}


@pytest.mark.parametrize("name", MADE)
def test_the_makers_layers_are_read_and_written(name: str) -> None:
    tensors = load_file(LAYERS / f"{name}.safetensors")
    made = {key.removeprefix("made."): tensors.pop(key)
            for key in list(tensors) if key.startswith("made.")}  # fmt: skip
    linear = read_linear(tensors, MADE[name], 32, 64)
    weight = linear.weight_codes
    found = [weight.codes, weight.grid.zeros, weight.grid.scales.half(),
             weight.grid.group_of.to(torch.uint8)]  # fmt: skip
    for part, wanted in zip(found, ("codes", "zeros", "scales", "group_of"), strict=True):
        assert torch.equal(part, made[wanted]), wanted
    torch.testing.assert_close(linear(made["rows"]), made["outputs"], rtol=1e-4, atol=1e-4)
    written = to_tensors(linear, MADE[name])
    assert written.keys() == tensors.keys() - {"bias"}
    assert all(torch.equal(written[key], tensors[key]) for key in written)


@st.composite
def weights(draw: st.DrawFn, bits: tuple[int, ...] = (2, 3, 4, 8)) -> tuple:
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    scheme = Scheme(draw(st.sampled_from(bits)), draw(st.none() | st.integers(1, 45)),
                    draw(st.booleans()))  # fmt: skip
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    size, last = scheme.group_size or columns, 2**scheme.bits
    shape = (rows, -(-columns // size))
    zeros = torch.randint(0, last, shape, generator=generator)
    zeros = torch.full(shape, last // 2) if scheme.symmetric else zeros
    scales = (1e-3 + torch.rand(shape, generator=generator)).half().float()
    if draw(st.booleans()):  # of another's file, and too small for float16
        scales = (1e-6 * scales).bfloat16().float()
    codes = torch.randint(0, last, (rows, columns), generator=generator)
    grid = Grid(scheme.bits, scales, zeros.to(torch.uint8), torch.arange(columns) // size)
    return QuantizedWeight(codes.to(torch.uint8), grid), scheme


def equal(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    return all(torch.equal(a, b) for a, b in (
        (one.codes, other.codes), (one.grid.zeros, other.grid.zeros),
        (one.grid.scales, other.grid.scales), (one.grid.group_of, other.grid.group_of),
    ))  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(weights())
def test_words_and_layouts_lose_nothing(case: tuple) -> None:
    weight, scheme = case
    columns = weight.codes.shape[1]
    assert torch.equal(unpack(pack(weight.codes, scheme.bits), scheme.bits, columns), weight.codes)
    to_packed, from_packed = layouts.to_pack_quantized, layouts.from_pack_quantized
    assert equal(from_packed(to_packed(weight, scheme), scheme), weight)
    for version in (1, 2):
        assert equal(layouts.from_gptq(layouts.to_gptq(weight, version), scheme, version), weight)
    if scheme.bits in (4, 8):
        assert equal(layouts.from_awq(layouts.to_awq(weight), scheme), weight)
    if scheme.bits == 8:
        tensors = layouts.to_int_quantized(weight, scheme)
        assert equal(layouts.from_int_quantized(tensors, scheme), weight)


@settings(max_examples=40, deadline=None)
@given(weights())
def test_read_linear_takes_what_every_layout_writes(case: tuple) -> None:
    weight, scheme = case
    names = ["pack-quantized"] + ["gptq", "gptq_v2"] * (scheme.bits != 3)
    names += ["awq"] * (scheme.bits in (4, 8)) + ["int-quantized"] * (scheme.bits == 8)
    for layout in names:
        stored = StoredAs(layout, scheme)
        tensors = to_tensors(GroupedLinear(weight), stored)
        assert equal(read_linear(tensors, stored, *weight.codes.shape).weight_codes, weight) or (
            layout == "awq" and scheme.symmetric
        )
        config = write_config(stored)
        back = read_config(json.loads(json.dumps(config)))("layers.0.self_attn.q_proj")
        assert back.layout == layout and back.scheme.bits == scheme.bits
        assert back.scheme.group_size == scheme.group_size


ROW = held_out_rows(1)[:, :48]


def logits(model: Transformer) -> torch.Tensor:
    return model.logits(hidden_states(model, ROW)[0])


@cache
def folder_of(name: str, tmp: Path = Path("/")) -> tuple[Path, torch.Tensor]:
    """A folder of the model, quantized, and what the model gave that was written."""
    form, scheme = FOLDERS[name]
    model = round_linears(load_model(MODEL), scheme)
    return save_quantized(model, MODEL, tmp / name, form), logits(model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, torch.Tensor]]:
    home = tmp_path_factory.mktemp("quantized")
    return lambda name: folder_of(name, home)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_gives_back_the_model(name: str, folder: Callable) -> None:
    path, wanted = folder(name)
    assert torch.equal(logits(load_quantized(path)), wanted)
    with safe_open(path / "model.safetensors", "pt") as file:
        kinds = {key.rpartition(".")[2]: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
    assert {kinds.get(key, "I32") for key in ("qweight", "qzeros", "weight_packed", "g_idx")} == {
        "I32"
    }
    assert (path / "tokenizer.json").read_bytes() == (MODEL / "tokenizer.json").read_bytes()
    with pytest.raises(ModelFolderError, match="holds quantized weights, which lab 09 reads"):
        load_model(path)


@pytest.mark.parametrize("name", LLM_COMPRESSOR)
def test_a_folder_as_llm_compressor_writes_it(name: str, tmp_path: Path) -> None:
    """Its config, and scales in the model's bfloat16."""
    stored = LLM_COMPRESSOR[name]
    save_random(tmp_path / "small", **SMALL)
    model = round_linears(load_model(tmp_path / "small"), stored.scheme, stored.activations)
    path = save_quantized(model, tmp_path / "small", tmp_path / "few")
    configs = json.loads((LAYERS / "llm-compressor.json").read_text("utf-8"))
    _edit_config(path, lambda q: (q.clear(), q.update(configs[name])))
    tensors = load_file(path / "model.safetensors")
    for key in tensors:
        if key.endswith("weight_scale"):
            tensors[key] = tensors[key].bfloat16()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    assert read_config(configs[name])("layers.0.mlp.up_proj") == stored
    found = dict(linears(load_quantized(path)))
    for each, linear in linears(model):
        assert found[each].int8_activations == stored.activations
        scales = tensors[f"model.{each}.weight_scale"].float()
        wanted = linear.weight_codes
        wanted = QuantizedWeight(wanted.codes, replace(wanted.grid, scales=scales))
        assert equal(found[each].weight_codes, wanted)


def test_dtype_of_everything_else(folder: Callable) -> None:
    model = load_quantized(folder("int4")[0], torch.bfloat16)
    linear = model.layers[0].mlp.up_proj
    assert linear.words.dtype == torch.int32 and linear.scales.dtype == torch.float16
    assert model.norm.weight.dtype == model.embed_tokens.weight.dtype == torch.bfloat16
    assert torch.isfinite(logits(model)).all()


@pytest.mark.parametrize("name", ["int4", "int4-symmetric", "int8", "int3"])
@pytest.mark.few(2)
def test_transformers_reads_what_we_write(name: str, folder: Callable) -> None:
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM

    path, _ = folder(name)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ours = load_quantized(path)
    with torch.no_grad():
        for each, linear in linears(ours):
            plain.get_submodule(f"model.{each}").weight.copy_(linear.dequantize())
        found = theirs(ROW).logits[0]
        assert torch.equal(found, plain(ROW).logits[0])  # 0.0 off the dequantized model's
    torch.testing.assert_close(logits(ours), found, rtol=0, atol=2e-4)


def test_transformers_multiplies_int8_activations_alike(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM

    ours = quantize_linears(load_model(MODEL), "w8a8")
    path = save_quantized(ours, MODEL, tmp_path / "w8a8")
    assert torch.equal(logits(load_quantized(path)), logits(ours))
    theirs, seen = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: object, inputs: tuple, output: torch.Tensor) -> None:
            seen[name] = inputs[0].detach(), output.detach()

        return hook

    for name, _ in linears(ours):
        theirs.get_submodule(f"model.{name}").register_forward_hook(note(name))
    with torch.no_grad():
        theirs(ROW)
        for name, linear in linears(ours):  # of the same inputs: a code at a tie moves all behind
            inputs, outputs = seen[name]
            torch.testing.assert_close(linear(inputs), outputs, rtol=1e-5,
                                       atol=1e-6 * outputs.abs().max().item())  # fmt: skip


@pytest.mark.parametrize("method", ["gptq", "awq", "squeezellm", "smoothquant"])
def test_every_method_can_be_written(method: str, tmp_path: Path) -> None:
    save_random(tmp_path / "small", **SMALL)
    model = load_model(tmp_path / "small")
    rows = torch.randint(3, 400, (4, 24), generator=torch.Generator().manual_seed(0))
    scheme = BY_CHANNEL if method == "smoothquant" else Scheme(3, 16)
    quantize(model, method, scheme, rows)
    form = "squeezellm" if method == "squeezellm" else "compressed-tensors"
    path = save_quantized(model, tmp_path / "small", tmp_path / "few", form)
    hidden = hidden_states(model, rows)
    assert torch.equal(hidden_states(load_quantized(path), rows), hidden)
    assert (path / "model.safetensors").stat().st_size < 1.3e6


@pytest.mark.proof
def test_the_benchmark_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model as it is, in transformers; the others have environments of their own."""
    words = ["--only", "not quantized", "--rows", "1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["quantized_files", *words])
    quantized_files.main()
    found = json.loads((tmp_path / "quantized-files.json").read_text("utf-8"))
    [row] = found["results"]["folders"]
    assert row["how"] == "not quantized" and row["bytes"] > 7e6 and "vLLM" not in row
    assert row["transformers"]["largest_difference"] < 2e-4


def test_some_linears_may_stay_as_they_were(tmp_path: Path) -> None:
    save_random(tmp_path / "small", **SMALL)
    whole = load_model(tmp_path / "small")
    model = round_linears(load_model(tmp_path / "small"), Scheme(4, 8))
    path = save_quantized(model, tmp_path / "small", tmp_path / "few")
    kept = "layers.1.mlp.down_proj"
    tensors = load_file(path / "model.safetensors")
    tensors = {key: value for key, value in tensors.items() if kept not in key}
    tensors[f"model.{kept}.weight"] = whole.get_submodule(kept).weight
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    _edit_config(path, lambda q: q["ignore"].append("re:.*1.mlp.down_proj"))
    replace_linear(model, kept, whole.get_submodule(kept))
    found = load_quantized(path)
    assert isinstance(found.get_submodule(kept), torch.nn.Linear)
    assert torch.equal(hidden_states(found, ROW % 400), hidden_states(model, ROW % 400))


def _edit_config(path: Path, change: Callable[[dict], object]) -> None:
    config = json.loads((path / "config.json").read_text("utf-8"))
    change(config["quantization_config"])
    (path / "config.json").write_text(json.dumps(config), "utf-8")


def config(**values: object) -> Callable[[Path], None]:
    return lambda path: _edit_config(path, lambda q: q.update(values))


def weight_args(**values: object) -> Callable[[Path], None]:
    return lambda path: _edit_config(
        path, lambda q: q["config_groups"]["group_0"]["weights"].update(values)
    )


def group_args(**values: object) -> Callable[[Path], None]:
    return lambda path: _edit_config(path, lambda q: q["config_groups"]["group_0"].update(values))


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable:
    def edit(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        (key,) = (key for key in tensors if key.endswith(f"layers.0.mlp.up_proj.{name}"))
        changed = change(tensors.pop(key))
        if changed is not None:
            tensors[key] = changed.contiguous()
        save_file(tensors, path / "model.safetensors", {"format": "pt"})

    return edit


def added(name: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        tensors[name] = torch.ones(1, dtype=torch.int32)
        save_file(tensors, path / "model.safetensors", {"format": "pt"})

    return edit


def _first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(scales: torch.Tensor) -> torch.Tensor:
        scales.view(-1)[0] = value
        return scales

    return change


LINEAR = r"layers\.0\.mlp\.up_proj "
TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
BROKEN = {  # form, what is broken, what is said
    "method unknown": ("awq", config(quant_method="bitsandbytes"), "'bitsandbytes', and this"),
    "no method": ("awq", config(quant_method=None), "quant_method is None"),
    "config of another method": ("awq", config(quant_method="compressed-tensors"), "KeyError"),
    "bits": ("gptq", config(bits=3), "bits is 3, and this engine reads 2 or 4 or 8"),
    "strange bits": ("gptq", config(bits="four"), "bits is 'four'"),
    "group of the config": ("gptq", config(group_size=16), r"_proj has a .* groups of 16"),
    "group of compressed-tensors": ("compressed-tensors", weight_args(group_size=32), "groups of"),
    "bits of the config": ("awq", config(bits=8), "_proj has a qweight of shape"),
    "symmetric, but zero points": ("compressed-tensors", weight_args(symmetric=True),
                                   "has a weight_zero_point, which is not read"),
    "words missing": ("gptq", tensor("qweight", lambda x: x[:-1]), LINEAR + "has a qweight of sh"),
    "no words": ("awq", tensor("qweight", lambda x: None), LINEAR + "lacks qweight"),
    "no scales": ("compressed-tensors", tensor("weight_scale", lambda x: None), "lacks weight_sc"),
    "no zero points": ("gptq", tensor("qzeros", lambda x: None), "lacks qzeros"),
    "words as floats": ("gptq", tensor("qweight", lambda x: x.half()), "qweight of float16 where"),
    "scales as integers": ("awq", tensor("scales", lambda x: x.int()), "floats are expected"),
    "scale of NaN": ("gptq", tensor("scales", _first(float("nan"))), "scales that are NaN"),
    "scale of 0": ("awq", tensor("scales", _first(0.0)), "not above 0"),
    "infinite scale": ("compressed-tensors", tensor("weight_scale", _first(float("inf"))), "infi"),
    "g_idx outside": ("gptq", tensor("g_idx", lambda x: x + 9), "g_idx beyond its 4 groups"),
    "shape": ("compressed-tensors", tensor("weight_shape", lambda x: x + 1), "the weight_shape"),
    "marlin": ("gptq", config(checkpoint_format="marlin"), "checkpoint_format is 'marlin'"),
    "rules by layer": ("gptq", config(dynamic={"+:.*": {"bits": 8}}), "`dynamic` rules"),
    "gemv": ("awq", config(version="gemv"), "version is 'gemv'"),
    "no zero points in awq": ("awq", config(zero_point=False), "zero_point is False"),
    "fp8": ("compressed-tensors", weight_args(type="float"), "type of weights is 'float'"),
    "one scale for all": ("compressed-tensors", weight_args(strategy="tensor"), "'tensor'"),
    "another format": ("compressed-tensors", config(format="nvfp4-pack-quantized"), "nvfp4"),
    "activations by tensor": ("compressed-tensors", group_args(
        format="int-quantized", input_activations=TOKENS | {"strategy": "tensor"}), "num_bits|st"),
    "kv cache": ("compressed-tensors", config(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
    "sparsity": ("compressed-tensors", config(sparsity_config={"format": "sparse-24"}), "sparse-2"),
    "no target": ("compressed-tensors", group_args(targets=["re:.*q_proj"]), "leaves it as it was"),
    "head quantized": ("gptq", added("lm_head.qweight"), r"lm_head\.qweight is quantized, too"),
    "input scale": ("gptq", added("model.layers.0.mlp.up_proj.input_scale"), "input_scale, which"),
    "extra tensor": ("awq", tensor("scales", lambda x: None), "lacks scales"),
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, and its folders in three formats: groups of 8."""
    home = tmp_path_factory.mktemp("small")
    save_random(home / "small", **SMALL)
    for form in ("compressed-tensors", "gptq", "awq"):
        model = round_linears(load_model(home / "small"), Scheme(4, 8))
        save_quantized(model, home / "small", home / form, form)
    return home


@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_what_does_not_fit_is_one_sentence(case: str, small: Path, tmp_path: Path) -> None:
    form, change, says = BROKEN[case]
    path = Path(shutil.copytree(small / form, tmp_path / "folder"))
    change(path)
    with pytest.raises(QuantizationError, match=says) as error:
        load_quantized(path)
    text = str(error.value)
    assert text.startswith("The model in ") and text.endswith(".") and "\n" not in text
    with pytest.raises(ModelFolderError, match=says):
        LLM(path)


def test_nothing_half_written(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = round_linears(load_model(small / "small"), Scheme(4, 8))
    to = tmp_path / "made" / "here"
    with monkeypatch.context() as patch:
        patch.setattr("nanovllm.quantization.checkpoint.save_file", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_quantized(model, small / "small", to)
    assert list(to.parent.iterdir()) == []
    save_quantized(model, small / "small", to)
    assert [each.name for each in to.parent.iterdir()] == ["here"]
    refusals = {
        "is there already": (model, small / "small", to, "gptq"),
        "is quantized already": (model, small / "gptq", tmp_path / "a", "gptq"),
        "is not known; use compressed-tensors, gptq": (model, small / "small", tmp_path / "a", "x"),
        "is not quantized; quantize all": (load_model(small / "small"), small / "small",
                                           tmp_path / "a", "awq"),
        "holds codes of 4 or 8 bits, not of 3": (
            round_linears(load_model(small / "small"), Scheme(3, 8)), small / "small",
            tmp_path / "a", "awq"),
        "has no tensors for": (model, small / "small", tmp_path / "a", "squeezellm"),
        "act-order with groups": (mixed(small), small / "small", tmp_path / "a", "gptq"),
        "one folder holds one scheme": (uneven(small), small / "small", tmp_path / "a", "gptq"),
    }  # fmt: skip
    for says, given_ in refusals.items():
        with pytest.raises(QuantizationError, match=says):
            save_quantized(*given_)
    assert not (tmp_path / "a").exists() and not list(tmp_path.glob(".*"))


def mixed(small: Path) -> Transformer:
    """A model with a linear whose groups do not lie one after another."""
    model = load_quantized(small / "gptq")
    model.layers[0].mlp.up_proj.group_of = model.layers[0].mlp.up_proj.group_of.flip(0)
    return model


def uneven(small: Path) -> Transformer:
    model = load_quantized(small / "gptq")
    other = round_linears(load_model(small / "small"), Scheme(4, 16))
    replace_linear(model, "layers.1.mlp.up_proj", other.layers[1].mlp.up_proj)
    return model


def test_act_order_of_a_file_is_read(small: Path, tmp_path: Path) -> None:
    """Groups mixed up by g_idx: the plain step multiplies them as they are."""
    path = Path(shutil.copytree(small / "gptq", tmp_path / "folder"))
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1))
    tensor("g_idx", lambda x: x[order])(path)
    plain, found = load_quantized(small / "gptq"), load_quantized(path)
    one, other = (m.layers[0].mlp.up_proj.weight_codes for m in (plain, found))
    assert torch.equal(one.codes, other.codes)
    assert torch.equal(one.grid.group_of[order], other.grid.group_of)


PROMPTS = ["Once upon a time there was a little", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "12 + 30 ="]
GREEDY = SamplingParams(temperature=0, max_tokens=7, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=4, max_tokens=7)
KINDS = ("int8", "int4", "w8a8")


def llm_in(kind: str | None, **options: object) -> LLM:
    return LLM(**{"model": MODEL, "enforce_eager": True, **options}, quantization=kind)


@cache
def plain(kind: str) -> LLM:
    return llm_in(kind)


def answers(llm: LLM, params: SamplingParams, prompts: list[str] = PROMPTS) -> list:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm.runner.engine.check()
    return [[(a.text, a.token_ids, a.finish_reason) for a in o.outputs] for o in outputs]


def same(
    params: SamplingParams = SAMPLED, kinds: tuple = ("int8", "int4"), **options: object
) -> None:
    """Each kind gives the texts that it gives without these options.

    Not w8a8: where attention's last bit differs, an activation at a tie gets another code.
    """
    for kind in kinds:
        assert answers(llm_in(kind, **options), params) == answers(plain(kind), params)


def alone() -> None:
    for kind in ("int8", "int4"):
        together = answers(plain(kind), SAMPLED)
        assert together == [answers(plain(kind), SAMPLED, [one])[0] for one in PROMPTS]
    linear = plain("w8a8").model.layers[0].mlp.down_proj
    rows = torch.randn(9, linear.in_features, generator=torch.Generator().manual_seed(0))
    assert torch.equal(linear(rows), torch.cat([linear(row[None]) for row in rows]))


def engines() -> None:
    for engine in ("continuous", "static"):
        same(GREEDY, engine=engine, kinds=("int4",))


def bfloat16() -> None:
    for kind in KINDS:
        llm = llm_in(kind, dtype="bfloat16")
        linear = llm.model.layers[0].mlp.up_proj
        assert linear.stored_bits < 8.2 * linear.in_features * linear.out_features
        assert all(text for [(text, _, _)] in answers(llm, GREEDY))


def codes_in_the_cache() -> None:
    llm = llm_in("int4", kv_cache_dtype="int8")
    assert llm.kv_bytes_per_token == 2 * 2 * 2 * (32 + 4)
    assert all(text for [(text, _, _)] in answers(llm, GREEDY))


def guesses() -> None:
    draft = {"method": "ngram_then_draft", "model": str(MODEL)}
    same(speculative_config=draft, kinds=("int4",))


def beams() -> None:
    found = [plain(kind).beam_search(PROMPTS[0], beam_width=3, max_tokens=8)[0].outputs
             for kind in KINDS]  # fmt: skip
    assert all(len(each) == 3 for each in found)


def eager() -> None:
    for kind in KINDS:
        llm = llm_in(kind, enforce_eager=False)
        if available() is None:
            assert llm.rung.step == "compiled" and llm.runner.engine.wait()
        found = answers(llm, GREEDY)
        assert kind == "w8a8" or found == answers(plain(kind), GREEDY)


def folder_without_a_word(tmp_path: Path) -> None:
    path = save_quantized(round_linears(load_model(MODEL), Scheme(4, 64)), MODEL, tmp_path / "a")
    for asked in (None, "compressed-tensors"):
        assert answers(llm_in(asked, model=path), GREEDY) == answers(plain("int4"), GREEDY)
    with pytest.raises(OptionError, match=r"quantized already .compressed-tensors.; leave"):
        llm_in("gptq", model=path)
    with pytest.raises(OptionError, match=r"quantized already .compressed-tensors.; leave"):
        llm_in("int8", model=path)


def not_quantized() -> None:
    for method in ("gptq", "awq", "compressed-tensors", "squeezellm"):
        with pytest.raises(OptionError, match=r"says how a folder was quantized, and .* was not"):
            llm_in(method)


def unknown() -> None:
    for kind in ("int2", "fp8", "", 8):
        with pytest.raises(OptionError, match="is not known; use int8, int4, w8a8"):
            llm_in(kind)


ROWS: dict[str, Callable[..., None]] = {
    "requests alone or together": alone,
    "`enable_prefix_caching`, `block_size`": lambda: same(
        enable_prefix_caching=False, block_size=48, kinds=("int4",)
    ),
    "`max_num_batched_tokens`, `max_num_seqs`": lambda: same(
        GREEDY, max_num_batched_tokens=6, max_num_seqs=2
    ),
    "preemption (`num_gpu_blocks_override`)": lambda: same(
        GREEDY, num_gpu_blocks_override=5, kinds=("int4",)
    ),
    '`engine="continuous"` or `"static"` (slots)': engines,
    "`enforce_eager`, on or off": eager,
    '`dtype="bfloat16"`': bfloat16,
    "`kv_cache_dtype`": codes_in_the_cache,
    "`speculative_config`": guesses,
    "`beam_search`": beams,
    "a folder with a `quantization_config`": folder_without_a_word,
    "a method's name for a folder that is not quantized": not_quantized,
    "another `quantization`": unknown,
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.few(3)
def test_option(row: str, request: pytest.FixtureRequest) -> None:
    check = ROWS[row]
    needs = check.__code__.co_varnames[: check.__code__.co_argcount]
    check(*(request.getfixturevalue(name) for name in needs))


def test_the_table_in_the_readme_has_these_rows() -> None:
    assert options_beside("with quantized weights") == (list(ROWS), list(ROWS)[-2:])


def test_without_lab_09_it_is_one_sentence(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_codes, "why_missing", {"lab09": "lab09 is not here."}.get)
    with pytest.raises(OptionError, match=r"needs lab09 .* lab09 is not here"):
        llm_in("int8")
    with pytest.raises(ModelFolderError, match=r"quantized .awq. and needs lab09: lab09 is not"):
        LLM(small / "awq")
    llm_in(None)


@pytest.mark.parametrize("command", [["generate", "a"], ["chat"], ["serve"]], ids=" ".join)
def test_on_every_command_another_kind_is_one_sentence(command: list[str]) -> None:
    done = run(*command, "--quantization", "int2")
    assert done.returncode == 2 and "'int2' is not known; use int8, int4, w8a8" in done.stderr
    assert done.stderr.strip().count("\n") == 0 and "Traceback" not in done.stderr


def test_the_command_writes_a_folder_that_answers(tmp_path: Path) -> None:
    to = tmp_path / "few"
    done = run("quantize", "bundled", "--method", "rtn", "--held-out", "2", "--to", to)
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stdout and "4.31" in done.stdout and "7.35" in done.stdout
    answer = run("generate", PROMPTS[0], "--max-tokens", "8", "--model", to)
    assert answer.returncode == 0 and answer.stdout.strip(), answer.stderr
    again = run("quantize", "bundled", "--to", to)
    assert again.returncode == 2 and "is there already" in again.stderr


REFUSED = {  # what `nanovllm quantize` is given, and what it says
    "method 'nonsense' is not known; use rtn, gptq, awq, squeezellm": {"method": "nonsense"},
    "bits must be one of 2, 3, 4, 8; got 5": {"bits": 5},
    "group_size must be a whole number": {"group": 0},
    "gptq holds codes of 2 or 4 or 8 bits, not of 3": {"bits": 3, "format": "gptq"},
    "format 'gguf' is not known": {"format": "gguf"},
    "--format gptq has no place for": {"method": "squeezellm", "format": "gptq"},
    "squeezellm has tables of 2, 3 or 4 bits": {"method": "squeezellm", "bits": 8},
    "smoothquant is 8 bits by channel": {"method": "smoothquant"},
    "/dev/null holds no text": {"calibration": Path("/dev/null")},
    "/nowhere cannot be read": {"calibration": Path("/nowhere")},
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_the_command_refuses(says: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=re.escape(says)) as error:
        quantize_command("bundled", tmp_path / "few", **REFUSED[says])
    sentence, code = explain(error.value)
    assert code == 2 and sentence.endswith(".") and "\n" not in sentence
    assert list(tmp_path.iterdir()) == []


def test_no_quantized_model_is_quantized_again(small: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match="is quantized already"):
        quantize_command(str(small / "awq"), tmp_path / "few")


def test_text_of_ones_own_calibrates(small: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(PROMPTS * 20), "utf-8")
    quantize_command(
        str(small / "small"), tmp_path / "few", calibration=text, group=8, rows=2, held_out=2
    )
    assert isinstance(load_quantized(tmp_path / "few").layers[0].mlp.up_proj, GroupedLinear)
    (small / "small" / "tokenizer.json").open("a").write("\n")  # another file: another tokenizer
    with pytest.raises(Refused, match="a tokenizer of its own, for which the course has no text"):
        quantize_command(str(small / "small"), tmp_path / "more")


def test_texts_of_a_quantized_draft(small: Path, tmp_path: Path) -> None:
    path = save_quantized(round_linears(load_model(MODEL), Scheme(4, 32)), MODEL, tmp_path / "few")
    llm = llm_in(None, speculative_config={"method": "draft_model", "model": str(path)})
    events: list = []
    llm.runner.on_event = events.append
    assert answers(llm, GREEDY) == answers(llm_in(None), GREEDY)
    assert any(isinstance(event, Finished) for event in events)
