"""The GPU path's parts on a CPU: kernels interpreted, captures replaced, the device a fake."""

from __future__ import annotations

import pytest
import torch

from nanovllm.generation.events import Finished
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sampling import SamplingRow, sample
from nanovllm.gpu import GpuPathError
from nanovllm.gpu.decoder import FusedDecoder
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.batch import make_batch
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.cache import PagedCache
from nanovllm.performance.buckets import batch_buckets, bucket_for
from nanovllm.performance.buffers import DecodeBuffers, DecodeRow, HostInputs
from nanovllm.performance.draw import Draw, draw_tokens, likeliest
from nanovllm.performance.errors import PerformanceError
from nanovllm.performance.graphs import DecodeGraphs
from nanovllm.performance.runner import StepRunner

CONFIG = ModelConfig("qwen3", 40, 16, 2, 4, 2, 8, 24, 32, qk_norm=True, eos_token_ids=(2,))


@pytest.mark.parametrize("most", [1, 3, 8, 9, 16, 17, 256])
def test_every_batch_has_the_smallest_bucket_that_holds_it(most: int) -> None:
    buckets = batch_buckets(most)
    assert buckets[-1] >= most
    for count in range(1, most + 1):
        bucket = bucket_for(count, buckets)
        assert bucket in buckets
        assert bucket >= count
        assert not [size for size in buckets if count <= size < bucket]
    assert bucket_for(buckets[-1] + 1, buckets) is None


def test_padding_rows_point_nowhere_also_after_a_larger_batch() -> None:
    buffers = DecodeBuffers(8, 3, 4, "cpu", vocab_size=40)
    buffers.load([DecodeRow(5, 9 + i, [2, 1], token_id=7) for i in range(8)], 8)
    buffers.load([DecodeRow(2, 6, [1], token_id=3), DecodeRow(4, 20, [5, 4], source=1)], 4)
    batch = buffers.batch(4)
    assert batch.slot_mapping.tolist() == [6, 20, -1, -1]
    assert batch.context_lens.tolist() == [3, 5, 0, 0]
    assert batch.block_tables.tolist() == [[1, 0, 0], [5, 4, 0], [0, 0, 0], [0, 0, 0]]
    buffers.sampled[:2] = torch.tensor([30, 31])
    assert buffers.token_ids(4).tolist() == [3, 31, 0, 0]
    buffers.sampled[1] = -1  # it had no finite logit: its id must not reach the embedding
    assert buffers.token_ids(4).tolist() == [3, 0, 0, 0]
    with pytest.raises(PerformanceError, match="9 rows do not fit into a bucket of 8"):
        buffers.load([DecodeRow(0, 0, [0])] * 9, 8)


def test_buffers_stay_where_they_are_and_host_copies_take_turns() -> None:
    buffers = DecodeBuffers(2, 1, 4, "cpu", vocab_size=40)
    before = {name: tensor.data_ptr() for name, tensor in buffers.on_device.items()}
    used = []
    for _ in range(3):
        buffers.load([DecodeRow(0, 0, [0])], 2)
        used.append(buffers._host[1].tensors["positions"].data_ptr())
    assert {name: tensor.data_ptr() for name, tensor in buffers.on_device.items()} == before
    assert used[0] == used[2] != used[1]


def test_host_memory_is_not_written_while_the_device_may_still_fetch_it() -> None:
    buffers, log = DecodeBuffers(2, 1, 4, "cpu", vocab_size=40), []

    class Event:
        def __init__(self, host: HostInputs, name: str) -> None:
            self.host, self.name = host, name

        def record(self) -> None:
            log.append(f"record {self.name}")

        def synchronize(self) -> None:
            log.append(f"wait {self.name}, position {int(self.host.tensors['positions'][0])}")

    for host, name in zip(buffers._host, "AB", strict=True):
        host._fetched = Event(host, name)
    for position in (1, 2, 3):
        buffers.load([DecodeRow(position, 0, [0])], 1)
    assert log == ["wait A, position 0", "record A", "wait B, position 0", "record B",
                   "wait A, position 1", "record A"]  # fmt: skip


def test_graphs_are_captured_largest_first_and_larger_batches_run_plainly() -> None:
    ran, captured = [], []

    def capture(function, pool):
        function()
        captured.append(pool)
        size = ran[-1]
        return (lambda: ran.append(f"replay {size}")), f"pool {size}"

    graphs = DecodeGraphs(ran.append, (1, 2, 4), capture)
    assert ran == [4, 2, 1]
    assert captured == [None, "pool 4", "pool 2"]
    ran.clear()
    for count in (3, 1, 6):
        graphs(graphs.rows_for(count))
    assert ran == ["replay 4", "replay 1", 6]


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_fused_decoder_equals_the_plain_one(family: str) -> None:
    config = ModelConfig(family, 40, 16, 2, 4, 2, 8, 24, 32, qk_norm=family == "qwen3")
    model = dummy_model(config, seed=1)
    ids, cache = torch.tensor([4, 9, 11, 30, 7]), PagedCache(config, 4, 4)
    batch = make_batch([(BlockTable(4, [2, 0]), 0, 5)])
    from nanovllm.model.attend import RecomputeAttend

    wanted = model(ids, torch.arange(5), RecomputeAttend(config))
    hidden = FusedDecoder(model).forward(ids, torch.arange(5), cache, batch)
    torch.testing.assert_close(hidden, wanted, rtol=1e-4, atol=1e-5)


def test_fused_weights_are_in_memory_once() -> None:
    model = dummy_model(CONFIG, seed=1)
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    layer = FusedDecoder(model).layers[0]
    attention, mlp = layer.block.self_attn, layer.block.mlp
    for fused, parts in (
        (layer.qkv, (attention.q_proj, attention.k_proj, attention.v_proj)),
        (layer.gate_up, (mlp.gate_proj, mlp.up_proj)),
    ):
        storages = {part.weight.untyped_storage().data_ptr() for part in parts}
        assert storages == {fused.untyped_storage().data_ptr()}
    assert all(torch.equal(w, expected[name]) for name, w in model.state_dict().items())


def test_a_row_whose_largest_logit_is_not_finite_has_no_token() -> None:
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor([[1.0, 3, 3], [-inf, 2, -inf], [5, nan, 1], [0, inf, 0], [-inf] * 3])
    assert likeliest(logits).tolist() == [1, 1, -1, -1, -1]


def test_draws_on_the_device_are_lab_03s() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)) * 3
    wishes = [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"seed": 4}]
    params = [SamplingParams(**wish) for wish in wishes]
    for position in range(1, 30):
        rows = [SamplingRow(p, [0] * position, [], seed=i) for i, p in enumerate(params)]
        draws = [Draw(p, i, position) for i, p in enumerate(params)]
        expected = [sampled.token_id for sampled in sample(logits, rows)]
        assert draw_tokens(logits, draws).tolist() == expected
    logits[2, 7] = torch.nan
    assert (draw_tokens(logits, draws) == -1).tolist() == [i == 2 for i in range(6)]


def test_other_families_are_refused() -> None:
    model = dummy_model(ModelConfig("gpt2", 40, 16, 1, 4, 4, 4, 24, 32), seed=1)
    with pytest.raises(GpuPathError, match="gpt2 has others"):
        FusedDecoder(model)


def test_decodes_launched_before_the_last_is_read_equal_one_at_a_time() -> None:
    model = dummy_model(CONFIG, seed=3)
    cache, blocks, prompt = PagedCache(CONFIG, 6, 4), [4, 1, 3], [5, 9, 12, 30, 8]
    runner = StepRunner(FusedDecoder(model), cache, 2, 12, capture=lambda f, pool: (f() or f, pool))
    assert not cache.k.any()  # captures compute padding alone, which is stored nowhere
    batch = make_batch([(BlockTable(4, blocks), 0, len(prompt) - 1)])
    runner.decoder.forward(torch.tensor(prompt[:-1]), torch.arange(4), cache, batch)
    params, launches = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), []
    for position in range(4, 9):
        slot = blocks[position // 4] * 4 + position % 4
        known = {"token_id": prompt[-1]} if position == 4 else {"source": 0}
        row = DecodeRow(position, slot, blocks, **known)
        launches.append(runner.decode([row], [Draw(params, 0, position + 1)]))
    done = [e for e in generate(model, prompt, params) if isinstance(e, Finished)]
    assert [launch.read() for launch in launches] == [[t] for t in done[0].completion.token_ids]
