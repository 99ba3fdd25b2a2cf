"""The GPU path's parts on a CPU: kernels interpreted, captures replaced, the device a fake."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from nanovllm.generation.events import Finished
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.gpu.buckets import batch_buckets, bucket_for
from nanovllm.gpu.buffers import DecodeBuffers, DecodeRow
from nanovllm.gpu.decoder import FusedDecoder
from nanovllm.gpu.graphs import DecodeGraphs
from nanovllm.gpu.pipeline import Pipeline
from nanovllm.gpu.runner import DecodeRunner
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.paging.batch import make_batch
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.cache import PagedCache

if torch.cuda.is_available():
    pytest.fail("these tests are of CPU tensors: run them with CUDA_VISIBLE_DEVICES= in front")

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
    buffers = DecodeBuffers(8, 3, 4, "cpu")
    buffers.load([DecodeRow(5, 9 + i, [2, 1], token_id=7) for i in range(8)], 8)
    buffers.load([DecodeRow(2, 6, [1], token_id=3), DecodeRow(4, 20, [5, 4], source=1)], 4)
    batch = buffers.batch(4)
    assert batch.slot_mapping.tolist() == [6, 20, -1, -1]
    assert batch.context_lens.tolist() == [3, 5, 0, 0]
    assert batch.block_tables.tolist() == [[1, 0, 0], [5, 4, 0], [0, 0, 0], [0, 0, 0]]
    buffers.sampled[:2] = torch.tensor([30, 31])
    assert buffers.token_ids(4).tolist() == [3, 31, 0, 0]
    with pytest.raises(ValueError, match="9 rows do not fit into a bucket of 8"):
        buffers.load([DecodeRow(0, 0, [0])] * 9, 8)


def test_buffers_stay_where_they_are_and_host_copies_take_turns() -> None:
    buffers = DecodeBuffers(2, 1, 4, "cpu")
    before = {name: tensor.data_ptr() for name, tensor in buffers.on_device.items()}
    used = []
    for _ in range(3):
        buffers.load([DecodeRow(0, 0, [0])], 2)
        used.append(buffers._host[1]["positions"].data_ptr())
    assert {name: tensor.data_ptr() for name, tensor in buffers.on_device.items()} == before
    assert used[0] == used[2] != used[1]


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
    from nanovllm.model.attention import RecomputeAttend

    wanted = model(ids, torch.arange(5), RecomputeAttend(config))
    hidden = FusedDecoder(model).forward(ids, torch.arange(5), cache, batch)
    torch.testing.assert_close(hidden, wanted, rtol=1e-4, atol=1e-5)


def test_other_families_are_refused() -> None:
    model = dummy_model(ModelConfig("gpt2", 40, 16, 1, 4, 4, 4, 24, 32), seed=1)
    with pytest.raises(ValueError, match="gpt2 has others"):
        FusedDecoder(model)


class OnePrompt:
    """Plans the decodes of one prompt, whose last token is computed first."""

    def __init__(self, prompt: list[int], count: int, block_ids: list[int], size: int) -> None:
        self.prompt, self.count, self.block_ids, self.size = prompt, count, block_ids, size
        self.planned, self.tokens = 0, []

    def plan(self) -> list[DecodeRow] | None:
        if self.planned == self.count:
            return None
        position = len(self.prompt) - 1 + self.planned
        slot = self.block_ids[position // self.size] * self.size + position % self.size
        first = self.planned == 0
        self.planned += 1
        return [
            DecodeRow(
                position,
                slot,
                self.block_ids,
                token_id=self.prompt[-1],
                source=None if first else 0,
            )
        ]

    def update(self, step: list[DecodeRow], tokens: Sequence[int]) -> None:
        self.tokens += tokens


def test_pipelined_decodes_equal_one_at_a_time() -> None:
    model = dummy_model(CONFIG, seed=3)
    cache, blocks, prompt = PagedCache(CONFIG, 6, 4), [4, 1, 3], [5, 9, 12, 30, 8]
    runner = DecodeRunner(model, cache, 2, 12, capture=lambda f, pool: (f() or f, pool))
    assert not cache.k.any()  # captures compute padding alone, which is stored nowhere
    batch = make_batch([(BlockTable(4, blocks), 0, len(prompt) - 1)])
    runner.decoder.forward(torch.tensor(prompt[:-1]), torch.arange(4), cache, batch)
    planner = OnePrompt(prompt, 5, blocks, 4)
    assert Pipeline(planner, runner).run() == 5
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    done = [e for e in generate(model, prompt, params) if isinstance(e, Finished)]
    assert planner.tokens == list(done[0].completion.token_ids)


def test_a_step_is_launched_before_the_one_before_it_is_read() -> None:
    log: list[str] = []

    class Device:
        def launch(self, step):
            log.append(f"launch {step}")
            return step

        def read(self, handle):
            log.append(f"read {handle}")
            return [handle]

    class Planner:
        def __init__(self):
            self.steps = iter([0, 1, None, 2, None, None])

        def plan(self):
            return next(self.steps)

        def update(self, step, tokens):
            log.append(f"update {step} {tokens}")

    assert Pipeline(Planner(), Device()).run() == 3
    assert log == [
        "launch 0", "launch 1", "read 0", "update 0 [0]", "read 1", "update 1 [1]",
        "launch 2", "read 2", "update 2 [2]",
    ]  # fmt: skip
