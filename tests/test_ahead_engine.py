"""Lab 14's engine on a CPU: recorded graphs and steps ahead over torch's operations."""

import pytest
import torch

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Failed
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.config import ModelConfig
from nanovllm.model.experts import ExpertsConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.store import PagedStore
from nanovllm.performance.ahead_engine import AheadEngine
from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.expert_checkpoint import with_experts
from nanovllm.performance.fusion import FusedTransformer
from nanovllm.performance.replay import recorded_capture

CONFIGS = {
    "qwen3": ModelConfig("qwen3", 40, 12, 2, 4, 2, 6, 20, 64, qk_norm=True),
    "mistral": ModelConfig("mistral", 40, 12, 2, 4, 4, 4, 18, 64, windows=(5, None)),
}


def run(engine, prompts, **params):
    found = {}
    for number, prompt in enumerate(prompts):
        given = SamplingParams(max_tokens=9, ignore_eos=True, **params)
        engine.add_request(prompt, given, seed=number, request_id=number)
    while engine.has_unfinished:
        for event in engine.step():
            if isinstance(event, Finished):
                found[event.request_id] = event.completion.token_ids
            elif isinstance(event, Failed):
                found[event.request_id] = None
        engine.check()
    return found


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9, "logprobs": 1}])
def test_the_plain_engines_texts(family, params) -> None:
    config, prompts = CONFIGS[family], [[3, 4, 5], [7] * 13, [9, 8], [30, 31, 32, 33, 34], [11]]
    model = dummy_model(config, 5)
    stores = [PagedStore(config, 60, 4) for _ in range(2)]
    for store in stores:  # what lies in unused slots is never read
        store.cache.k.fill_(torch.nan), store.cache.v.fill_(torch.nan)
    engines = [
        kind(model, EngineConfig(max_num_seqs=3), store=store)
        for kind, store in zip((Engine, AheadEngine), stores, strict=True)
    ]
    expected, found = (run(engine, prompts, **params) for engine in engines)
    assert found == expected


def test_a_row_of_nan_fails_alone() -> None:
    model = dummy_model(CONFIGS["qwen3"], 5)
    model.embed_tokens.weight.data[39] = torch.nan
    prompts, config = [[3, 4], [5, 39, 6], [7, 8]], EngineConfig(max_num_seqs=4)
    stores = [PagedStore(model.config, 60, 4) for _ in range(2)]
    expected = run(Engine(model, config, store=stores[0]), prompts, temperature=0.0)
    found = run(AheadEngine(model, config, store=stores[1]), prompts, temperature=0.0)
    assert found == expected and found[1] is None and found[0]


def test_a_host_that_waits_cannot_be_captured() -> None:
    x = torch.tensor([1.0, 2.0])
    for call in (lambda: x.sum().item(), lambda: x[x > 1], lambda: x.nonzero()):
        with pytest.raises(PerformanceError, match="host wait"):
            recorded_capture(call)
    with pytest.raises(PerformanceError, match="host wait"):
        recorded_capture(lambda: int(x[0]))


def test_experts_are_fused_but_not_captured() -> None:
    experts = ExpertsConfig(4, 2, 6, True, (0, 1))
    config = ModelConfig("mixtral", 40, 12, 2, 4, 2, 6, 20, 64, experts=experts)
    model = with_experts(dummy_model(config, 3))
    for layer in model.layers:
        for weight in layer.mlp.parameters():
            weight.data.normal_(generator=torch.Generator().manual_seed(1)).requires_grad_(False)
    ids, places = torch.tensor([3, 4, 5]), torch.arange(3)
    with torch.inference_mode():
        expected = model(ids, places, lambda layer, q, k, v: q)
        found = FusedTransformer(model)(ids, places, lambda layer, q, k, v: q)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(PerformanceError, match="use the plain engine"):
        AheadEngine(model, EngineConfig(), store=PagedStore(config, 9, 4))
