"""Mixture of experts in the engine: transformers' logits and texts, on every path that takes it."""

import json

import httpx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nanovllm import LLM, SamplingParams
from nanovllm.llm import paged_engines
from nanovllm.llm.read_options import OptionError
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.experts import extra_weights
from nanovllm.model.loader import load_model
from nanovllm.performance.expert_checkpoint import load_experts
from nanovllm.serving.config import ServeConfig
from tests.serving_tools import Live
from tests.tiny_checkpoint import SMALL, save_random

QWEN3 = {"moe_intermediate_size": 10, "num_experts": 6, "num_experts_per_tok": 2}
QWEN2 = {**QWEN3, "shared_expert_intermediate_size": 14}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
MAKERS = {
    "qwen3_moe": (transformers.Qwen3MoeConfig, QWEN3),
    "qwen2_moe": (transformers.Qwen2MoeConfig, QWEN2),
    "mixtral": (transformers.MixtralConfig, MIXTRAL),
}
ODD = {"hidden_size": 20, "intermediate_size": 13, "num_hidden_layers": 3}
CASES = {
    "qwen3_moe": {},
    "qwen3_moe normalised": {"norm_topk_prob": True},
    "qwen3_moe k=1": {"num_experts_per_tok": 1, "norm_topk_prob": True},
    "qwen3_moe k=all": {"num_experts_per_tok": 6},
    "qwen3_moe odd": {**ODD, "moe_intermediate_size": 7, "num_experts": 5, "norm_topk_prob": True},
    "qwen3_moe some dense": {"num_hidden_layers": 4, "decoder_sparse_step": 2},
    "qwen3_moe one dense": {"num_hidden_layers": 3, "mlp_only_layers": [1]},
    "qwen3_moe tied": {"tie_word_embeddings": True},
    "qwen2_moe": {},
    "qwen2_moe normalised": {"norm_topk_prob": True},
    "qwen2_moe odd": {**ODD, "shared_expert_intermediate_size": 9, "num_experts_per_tok": 6},
    "mixtral": {},
    "mixtral k=1": {"num_experts_per_tok": 1},
    "mixtral k=all": {"num_experts_per_tok": 4},
    "mixtral odd": {**ODD, "num_local_experts": 7, "num_experts_per_tok": 3},
    "mixtral window": {"sliding_window": 5},
}
PROMPTS = ["Once upon a time", "The capital of France is", "a", "Mia's code is 7342. Mia's code is"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def saved(folder, case: str, **options):
    make, own = MAKERS[case.split()[0]]
    model = save_random(folder, make, **{**SMALL, **own, **CASES[case], **options})
    model.set_experts_implementation("eager")  # their grouped product wants aligned sizes
    return model


@pytest.mark.parametrize("case", CASES)
def test_logits_of_transformers(case, tmp_path) -> None:
    theirs = saved(tmp_path, case, vocab=60)
    ours = load_experts(tmp_path)
    ids = torch.arange(23) * 7 % 60
    with torch.inference_mode():
        expected = theirs(ids[None]).logits[0]
        hidden = ours(ids, torch.arange(23), RecomputeAttend(ours.config))
        found = ours.logits(hidden)
    assert expected.std() > 0.3
    assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize("case", CASES)
def test_weights_are_counted(case, tmp_path) -> None:
    saved(tmp_path, case, vocab=60)
    from nanovllm.model.accounting import weight_count

    model = load_experts(tmp_path)
    matrices = sum(w.numel() for w in model.state_dict().values() if w.ndim > 1)
    assert weight_count(model.config) + extra_weights(model.config) == matrices


@pytest.mark.parametrize("case", ["qwen3_moe normalised", "qwen2_moe", "mixtral"])
@pytest.mark.few(1)
def test_texts_batched_and_paged(case, tmp_path) -> None:
    theirs = saved(tmp_path, case)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    expected = []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt)])
        with torch.inference_mode():
            whole = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12,
                pad_token_id=0,
            )  # fmt: skip
        expected.append(whole[0, ids.shape[1] :].tolist())
    options = [{}, {"engine": "static"}, {"engine": "continuous"}]
    options += [{"max_num_seqs": 3, "max_num_batched_tokens": 5, "swap_space": 0.001}]
    options += [{"speculative_config": {"method": "ngram"}}, {"kv_cache_dtype": "auto"}]
    for given in options:
        llm = LLM(tmp_path, **given)
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert [list(o.outputs[0].token_ids) for o in outputs] == expected, given
    assert LLM(tmp_path, enforce_eager=False).rung.step == "compiled"


def test_the_compiled_step_stands_back(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where lab 14's code is the student's, and where sizes are odd."""
    saved(tmp_path / "odd", "qwen3_moe odd")
    assert "plain: it needs even sizes" in LLM(tmp_path / "odd", enforce_eager=False).rung.step
    saved(tmp_path / "even", "qwen3_moe")
    monkeypatch.setattr(paged_engines, "is_mine", lambda package: package == "performance")
    step = LLM(tmp_path / "even", enforce_eager=False).rung.step
    assert step == "plain: your own code of performance is to run"
    assert LLM(enforce_eager=False).rung.step == "compiled"


def test_served_over_http(tmp_path) -> None:
    """The real server: three completions at once and a stream say what LLM.generate says."""
    saved(tmp_path, "qwen3_moe normalised")
    llm = LLM(tmp_path)
    offline = [o.outputs[0].text for o in llm.generate(PROMPTS[:3], GREEDY, use_tqdm=False)]
    body = {"model": "moe", "temperature": 0, "max_tokens": 12}
    with Live(llm.rung.make_engine(), ServeConfig(model_name="moe")) as live:
        url = live.url + "/v1/completions"
        answer = httpx.post(url, json={**body, "prompt": PROMPTS[:3]}, timeout=60)
        streamed = httpx.post(url, json={**body, "prompt": PROMPTS[1], "stream": True}, timeout=60)
    found = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    assert [choice["text"] for choice in found] == offline
    chunks = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert "".join(json.loads(c)["choices"][0]["text"] for c in chunks) == offline[1]


def test_a_rows_result_does_not_depend_on_its_batch(tmp_path) -> None:
    saved(tmp_path, "qwen3_moe", vocab=60)
    layer = load_experts(tmp_path).layers[0].mlp
    x = torch.randn(9, 32, generator=torch.Generator().manual_seed(1))
    together = layer(x)
    alone = torch.cat([layer(row[None]) for row in x])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    x[4] = torch.nan
    spoilt = layer(x)
    assert spoilt[4].isnan().all()
    kept = [i for i in range(9) if i != 4]
    torch.testing.assert_close(spoilt[kept], together[kept], atol=1e-5, rtol=1e-5)


def test_old_names_and_defaults(tmp_path) -> None:
    """Older files of Qwen say num_experts; Mixtral's base of RoPE is a million."""
    saved(tmp_path, "qwen3_moe", vocab=60)
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    raw["num_experts"] = raw.pop("num_local_experts")
    path.write_text(json.dumps(raw))
    assert load_experts(tmp_path).config.experts.num_experts == 6
    raw = {"model_type": "mixtral", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1}
    raw |= {"num_attention_heads": 2, "intermediate_size": 6, "max_position_embeddings": 8}
    path.write_text(json.dumps(raw))
    config = ModelConfig.from_pretrained(tmp_path)
    assert (config.rope_theta, config.norm_eps, config.experts.num_experts) == (1e6, 1e-5, 8)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_experts_per_tok": 9}, "visit 9 experts, but there are 6"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be a positive whole number"),
        ({"decoder_sparse_step": -1}, "decoder_sparse_step must be a positive whole number"),
        ({"decoder_sparse_step": None}, "decoder_sparse_step must be a positive whole number"),
        ({"num_local_experts": "six"}, "num_experts must be a positive whole number"),
        ({"moe_intermediate_size": None}, "intermediate_size must be a positive whole number"),
        ({"num_local_experts": 7}, r"expert tensor 6\.down_proj\.weight is missing"),
        ({"num_local_experts": 5}, r"belongs to none of the 5 experts"),
        ({"moe_intermediate_size": 11}, "has shape"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
    ],
)
def test_folders_that_cannot_be_used(change, says, tmp_path) -> None:
    saved(tmp_path, "qwen3_moe", vocab=60)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelFolderError, match=says):
        load_experts(tmp_path)


def test_an_expert_cut_short_is_named(tmp_path) -> None:
    saved(tmp_path, "mixtral", vocab=60)
    [path] = tmp_path.glob("*.safetensors")
    tensors = load_file(path)
    del tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ModelFolderError, match=r"layers\.1\.mlp.*2\.w3\.weight is missing"):
        load_experts(tmp_path)


def test_what_does_not_go_with_experts_is_refused(tmp_path) -> None:
    saved(tmp_path, "qwen3_moe")
    with pytest.raises(ModelFolderError, match="lab 14 reads: load it with LLM"):
        load_model(tmp_path)
    with pytest.raises(OptionError, match="mixture of experts, which is read as it is"):
        LLM(tmp_path, quantization="int8")
    with pytest.raises(OptionError, match="a mixture of experts such as"):
        LLM(tmp_path, tensor_parallel_size=2)
