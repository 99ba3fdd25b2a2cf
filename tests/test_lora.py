"""LoRA adapters in the engine: equal to peft, batched together, apart in the prefix cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nanovllm import LLM, SamplingParams
from nanovllm.cluster.transfer_params import TransferParams
from nanovllm.generation.begun import BegunParams, begun
from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Finished
from nanovllm.llm.lora import read_adapter
from nanovllm.llm.lora_engine import LoraEngine, lora_engine
from nanovllm.llm.lora_params import LoraParams
from nanovllm.llm.lora_server import LoraServer
from nanovllm.llm.read_options import OptionError
from nanovllm.model.errors import ModelFolderError
from nanovllm.serving.config import ServeConfig
from tests.processes import run
from tests.serving_tools import Live, server_of_command
from tests.test_cluster_serving import WithRole
from tests.tiny_checkpoint import SMALL, save_random

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
HOW: dict[str, dict[str, Any]] = {
    "few": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "all": {"r": 3, "lora_alpha": 5, "target_modules": ALL, "use_rslora": True},
}
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12], [5, 6, 7, 8, 9, 10, 30], [40, 41, 42]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base model, and peft's folders of two adapters."""
    found = {"base": tmp_path_factory.mktemp("base")}
    save_random(found["base"], **SMALL)
    for name, how in HOW.items():
        found[name] = tmp_path_factory.mktemp(name)
        save_adapter(found["base"], found[name], **how)
    return found


def save_adapter(base: Path, folder: Path, **how: Any) -> None:
    """An adapter of random factors, both far from zero, as peft writes it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(len(str(how)))
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **how))
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.save_pretrained(folder)


def peft_model(folders: dict[str, Path], name: str | None) -> Any:
    """The oracle: peft's model of an adapter, or the base model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folders["base"]).eval()
    return model if name is None else peft.PeftModel.from_pretrained(model, folders[name]).eval()


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
        min_new_tokens=count, max_new_tokens=count,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def engine_of(folders: dict[str, Path], **options: Any) -> LoraEngine:
    llm = LLM(folders["base"], enforce_eager=True, num_gpu_blocks_override=64, block_size=4,
              **options)  # fmt: skip
    return lora_engine(llm, {name: folders[name] for name in HOW})  # type: ignore[return-value]


@pytest.fixture
def engine(folders: dict[str, Path]) -> LoraEngine:
    return engine_of(folders)


def params_of(name: str | None, **more: Any) -> SamplingParams:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 12, "ignore_eos": True} | more)
    return params if name is None else LoraParams.of(params, name)


def answers(engine: LoraEngine, asked: list[tuple[str | None, list[int]]]) -> list[list[int]]:
    """The tokens of each; all are asked at once."""
    for number, (name, prompt) in enumerate(asked):
        engine.add_request(prompt, params_of(name), request_id=number)
    found = {e.request_id: e.completion for e in engine.run() if isinstance(e, Finished)}
    return [list(found[number].token_ids) for number in range(len(asked))]


@pytest.mark.parametrize("name", HOW)
def test_logits_are_those_of_peft(name: str, folders: dict[str, Path], engine: LoraEngine) -> None:
    with torch.no_grad():
        for prompt in PROMPTS:
            seen: list[torch.Tensor] = []
            execute = engine.execute
            engine.execute = lambda plan, e=execute, s=seen: s.append(e(plan)) or s[-1]  # type: ignore[method-assign]
            engine.add_request(prompt, params_of(name, max_tokens=1))
            list(engine.run())
            engine.execute = execute  # type: ignore[method-assign]
            wanted = peft_model(folders, name)(torch.tensor([prompt])).logits[0, -1]
            base = peft_model(folders, None)(torch.tensor([prompt])).logits[0, -1]
            assert (seen[0][0] - wanted).abs().max() < 1e-3 < (seen[0][0] - base).abs().max()


def test_all_at_once_are_as_each_alone_in_peft(
    folders: dict[str, Path], engine: LoraEngine
) -> None:
    asked = [(name, prompt) for prompt in PROMPTS for name in (None, *HOW)]
    wanted = [greedy(peft_model(folders, name), prompt, 12) for name, prompt in asked]
    mixed = []
    engine.adapters.choose = spy(engine.adapters, mixed)  # type: ignore[method-assign]
    assert answers(engine, asked) == wanted
    assert max(mixed) == 2, "both adapters, and the base model, were in one step"
    assert len({tuple(tokens) for tokens in wanted}) == len(wanted)
    engine.store.check([])


def spy(adapters: Any, mixed: list[int]) -> Any:
    choose = adapters.choose

    def chosen(plan: Any, device: Any) -> None:
        choose(plan, device)
        mixed.append(len(adapters.rows))

    return chosen


def test_chunks_and_preemption_change_nothing(folders: dict[str, Path]) -> None:
    llm = LLM(folders["base"], enforce_eager=True, num_gpu_blocks_override=9, block_size=4,
              max_num_batched_tokens=5, max_num_seqs=4)  # fmt: skip
    tight = lora_engine(llm, {name: folders[name] for name in HOW})
    asked = [(name, prompt) for prompt in PROMPTS for name in (None, *HOW)]
    wanted = [greedy(peft_model(folders, name), prompt, 12) for name, prompt in asked]
    assert answers(tight, asked) == wanted  # type: ignore[arg-type]


def test_no_two_share_the_prefix_cache(engine: LoraEngine) -> None:
    prompt = list(range(5, 26))
    for name in (None, *HOW):
        before = engine.store.prefix_stats.hits
        answers(engine, [(name, prompt)])
        assert engine.store.prefix_stats.hits == before, "nobody's blocks are found by others"
        answers(engine, [(name, prompt)])
        assert engine.store.prefix_stats.hits == before + 20, "one's own are"


def test_no_salt_of_a_client_looks_like_an_adapter(engine: LoraEngine) -> None:
    from nanovllm.llm.lora_engine import salt_with_adapter

    def salt(name: str | None, cache_salt: str | None) -> str:
        engine.add_request([5, 6], params_of(name, cache_salt=cache_salt))
        request = engine.requests.all()[0][-1]
        return salt_with_adapter(request)

    salts = [salt(name, given) for name in (None, *HOW) for given in (None, "x", "few", "y")]
    tricks = [salt(None, given) for given in salts]
    assert len({*salts, *tricks}) == 24


def test_an_adapter_that_is_not_here(engine: LoraEngine) -> None:
    with pytest.raises(RequestError, match="'gone'"):
        engine.add_request([5], params_of("gone"))


class LiveLora(Live):
    """A live server of the base model and both adapters."""

    def __init__(self, folders: dict[str, Path]) -> None:
        super().__init__()
        llm = LLM(folders["base"], enforce_eager=True, num_gpu_blocks_override=64)
        names = {name: folders[name] for name in HOW}
        self.server = LoraServer(names, lora_engine(llm, names), ServeConfig(model_name="base"))
        WithRole._run(self, self.server.app)


@pytest.fixture(scope="module")
def live(folders: dict[str, Path]) -> Iterator[LiveLora]:
    with LiveLora(folders) as server:
        yield server


def test_model_chooses_for_the_openai_client(folders: dict[str, Path], live: LiveLora) -> None:
    http = httpx.Client(trust_env=False)
    client = openai.OpenAI(base_url=live.url + "/v1", api_key="none", http_client=http)
    assert [card.id for card in client.models.list()] == ["base", *HOW]
    assert client.models.retrieve("few").to_dict()["parent"] == "base"
    for name in ("base", *HOW):
        for stream in (False, True):
            more = {"ignore_eos": True, "return_token_ids": True}
            answer = client.completions.create(
                model=name, prompt=PROMPTS[0], max_tokens=8, temperature=0, stream=stream,
                extra_body=more,
            )  # fmt: skip
            pieces = list(answer) if stream else [answer]
            assert {piece.model for piece in pieces} == {name}
            tokens = [t for p in pieces for c in p.choices for t in c.to_dict()["token_ids"]]
            model = peft_model(folders, None if name == "base" else name)
            assert tokens == greedy(model, PROMPTS[0], 8)
    with pytest.raises(openai.NotFoundError, match="gone"):
        client.completions.create(model="gone", prompt="x")
    with pytest.raises(openai.NotFoundError, match="gone"):
        client.models.retrieve("gone")


def spoiled(folder: Path, tmp_path: Path, **changed: Any) -> Path:
    """A copy of an adapter with other words in its config."""
    config = json.loads((folder / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | changed))
    shutil.copy(folder / "adapter_model.safetensors", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "changed",
    [{"use_dora": True}, {"bias": "all"}, {"peft_type": "IA3"}, {"modules_to_save": ["lm_head"]},
     {"alpha_pattern": {"q_proj": 1}}],
)  # fmt: skip
def test_other_adapters_are_refused_by_name(
    changed: dict[str, Any], folders: dict[str, Path], engine: LoraEngine, tmp_path: Path
) -> None:
    [field] = changed
    word = "LoRA" if field == "peft_type" else field
    with pytest.raises(ModelFolderError, match=word):
        read_adapter(spoiled(folders["few"], tmp_path, **changed), engine.model)


@pytest.mark.parametrize("what", ["wide", "strange", "half"])
def test_factors_of_another_model_are_refused(
    what: str, folders: dict[str, Path], engine: LoraEngine, tmp_path: Path
) -> None:
    folder = spoiled(folders["few"], tmp_path)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("lora_A.weight"))
    tensor = tensors.pop(name)
    if what == "wide":
        tensors[name] = torch.zeros(4, 99)
    if what == "strange":
        tensors[name.replace("layers.0", "layers.9")] = tensor
    save_file(tensors, path)
    with pytest.raises(ModelFolderError, match="layers"):
        read_adapter(folder, engine.model)


def test_neither_guesses_nor_ranks(folders: dict[str, Path]) -> None:
    guesses = {"method": "ngram", "num_speculative_tokens": 2}
    llm = LLM(folders["base"], enforce_eager=True, speculative_config=guesses)
    with pytest.raises(OptionError, match="guesses"):
        lora_engine(llm, {"few": folders["few"]})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--enable-lora",), "--lora-modules"),
        (("--lora-modules", "few=FEW"), "--enable-lora"),
        (("--enable-lora", "--lora-modules", "FEW"), "NAME=PATH"),
        (("--enable-lora", "--lora-modules", "few=BASE"), "adapter_config.json"),
        (("--enable-lora", "--lora-modules", "base=FEW"), "'base'"),
        (("--enable-lora", "--lora-modules", "few=FEW", "--supervise"), "--supervise"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    words: tuple[str, ...], said: str, folders: dict[str, Path]
) -> None:
    given = [word.replace("FEW", str(folders["few"])) for word in words]
    given = [word.replace("BASE", str(folders["base"])) for word in given]
    served = ("--model", str(folders["base"]), "--served-model-name", "base")
    done = run("serve", "--port", "0", *served, *given)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_command_makes_one_engine(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--model", str(folders["base"]), "--served-model-name", "base", "--enable-lora"]
    words += ["--num-gpu-blocks-override", "37", "--lora-modules", f"few={folders['few']}"]
    server, said, made = server_of_command(monkeypatch, *words)
    assert isinstance(server, LoraServer) and made == 0, "the LLM's own would serve nobody"
    assert "37 blocks of 16 tokens" in said.replace("\n", " ")


@pytest.mark.parametrize("of", [LoraParams.of, TransferParams.of])
def test_what_another_server_has_begun_stays_begun(of: Any) -> None:
    """Whatever stands before an engine adds its own to the parameters, and loses nothing."""
    begun_elsewhere = BegunParams.behind(SamplingParams(max_tokens=9, stop="x"), [5, 6])
    assert begun(of(begun_elsewhere, "law")) == (5, 6)
    assert begun(of(SamplingParams(), "law")) == ()
    assert of(begun_elsewhere, "law").stop == ("x",)
