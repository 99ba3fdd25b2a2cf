"""Lab 10: ranks give what one rank gives, in as many collectives as another library needs."""

import json
import os
import shutil
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from grader.checks.run_checks import fresh_processes
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.loader import dummy_model, load_model
from nanovllm.parallel.checkpoint import Checkpoint
from nanovllm.parallel.errors import ParallelError, RankDied
from nanovllm.parallel.loading import load_shard, load_weights
from nanovllm.parallel.process_group import join_group
from nanovllm.parallel.stored import Reads, StoredTensor
from nanovllm.parallel.threads import run_ranks
from nanovllm.parallel.transformer import ParallelTransformer
from tests.processes import lines_of
from tests.test_transformers_equality import FAMILIES
from tests.tiny_checkpoint import SMALL, TARGET, save_random

IDS = torch.tensor([3, 90, 14, 15, 92, 65, 35, 89, 79])
# What torch's own tensor parallelism needs for lab 02's model, on a backend that sends nothing.
DTENSOR = """
import sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model

size, layers = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
config = ModelConfig("llama", 64, 16, layers, 8, 8, 4, 32, 64)
model = dummy_model(config)
plan = {
    "embed_tokens": RowwiseParallel(input_layouts=Replicate()),
    "lm_head": ColwiseParallel(output_layouts=Replicate()),
}
for number, layer in enumerate(model.layers):
    layer.self_attn.num_heads //= size
    layer.self_attn.num_kv_heads //= size
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        plan[f"layers.{number}.{name}"] = ColwiseParallel()
    for name in ("mlp.gate_proj", "mlp.up_proj"):
        plan[f"layers.{number}.{name}"] = ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[f"layers.{number}.{name}"] = RowwiseParallel()
parallelize_module(model, init_device_mesh("cpu", (size,)), plan)
with CommDebugMode() as comm, torch.no_grad():
    hidden = model(torch.arange(5), torch.arange(5), RecomputeAttend(config))
    model.lm_head(hidden[-1:])
for kind, count in comm.get_comm_counts().items():
    print(str(kind).rpartition(".")[2], count)
"""


@torch.inference_mode()
def scores(model, ids=IDS):
    return model.logits(model(ids, torch.arange(len(ids)), RecomputeAttend(model.config)))


def shards_scores(folder, ids=IDS):
    """What a rank does: its logits, calls by kind, and bytes read."""

    def work(comm):
        checkpoint = Checkpoint(folder)
        model = load_shard(checkpoint, comm)
        logits = scores(model, ids)
        calls = {kind: count.calls for kind, count in comm.counts.by_kind.items()}
        return logits, calls, checkpoint.reads.bytes

    return work


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    make, options = FAMILIES[request.param]
    options = {**options, "n_head" if "n_head" in options else "num_attention_heads": 8}
    path = tmp_path_factory.mktemp(request.param)
    save_random(path, make, **options)
    return path


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_ranks_as_threads(folder, size):
    wanted = scores(load_model(folder))
    layers = Checkpoint(folder).config.num_layers
    found = run_ranks(size, shards_scores(folder))
    for logits, calls, _ in found:
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-3)
        assert torch.equal(logits, found[0][0])
        assert calls == {"all_reduce": 2 * layers + 1, "gather_last": 1}
    stored = sum(stored.shape.numel() * 4 for stored in Checkpoint(folder).tensors.values())
    if size == 1:
        assert found[0][2] == stored
    else:
        assert all(read < stored for *_, read in found)


def in_a_process(work):
    rank, size, meeting, folder = work
    comm = join_group(rank, size, meeting, timeout=60)
    try:
        logits, calls, _ = shards_scores(folder)(comm)
        return logits.numpy(), calls
    finally:
        comm.end()


def outlives(work):
    """Rank 1 leaves without a word; rank 0 waits for it."""
    rank, meeting = work
    comm = join_group(rank, 2, meeting, timeout=60)
    comm.exchange(torch.ones(1), 1 - rank, torch.empty(1), 1 - rank)
    if rank == 0:
        try:
            comm.receive(torch.empty(1), 1)
        except RankDied as error:
            return str(error)
    comm.end()
    return "ended"


def test_a_process_that_leaves_ends_the_wait_of_the_other(tmp_path):
    work = [(rank, f"file://{tmp_path}/meeting") for rank in range(2)]
    told, other = fresh_processes(outlives, work, 2)
    assert told.startswith("rank 0 has lost rank 1, which is gone or silent")
    assert other == "ended"


def test_ranks_as_processes(tmp_path):
    work = [(rank, 2, f"file://{tmp_path}/meeting", TARGET) for rank in range(2)]
    found = list(fresh_processes(in_a_process, work, 2))
    wanted = scores(load_model(TARGET))
    layers = Checkpoint(TARGET).config.num_layers
    for logits, calls in found:
        torch.testing.assert_close(torch.from_numpy(logits), wanted, rtol=1e-4, atol=1e-3)
        assert (logits == found[0][0]).all()
        assert calls == {"all_reduce": 2 * layers + 1, "gather_last": 1}


class Collectives(TorchDispatchMode):
    """Counts the collectives that torch.distributed is asked for, under either of its names."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = str(operation).replace("_", "")
        for kind in ("allreduce", "allgather"):
            self.calls[kind] += "c10d" in name and kind in name
        return operation(*args, **(kwargs or {}))


def with_transformers(work):
    """Logits and collectives of transformers' own tensor parallelism, on one of two ranks."""
    rank, meeting, folder = work
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=2)
    plan = DistributedConfig(tp_plan="auto")
    model = AutoModelForCausalLM.from_pretrained(
        folder, distributed_config=plan, dtype=torch.float32
    )
    with torch.inference_mode(), Collectives() as seen:
        logits = model(IDS[None], logits_to_keep=1).logits[0]
    torch.distributed.destroy_process_group()
    return logits.numpy(), seen.calls


def test_as_transformers_own_tensor_parallelism(tmp_path):
    pytest.importorskip("accelerate", reason="transformers cuts models with accelerate only")
    work = [(rank, f"file://{tmp_path}/meeting", TARGET) for rank in range(2)]
    found = list(fresh_processes(with_transformers, work, 2))
    ours = run_ranks(2, shards_scores(TARGET))
    for (theirs, counted), (logits, calls, _) in zip(found, ours, strict=True):
        torch.testing.assert_close(logits[-1:], torch.from_numpy(theirs), rtol=1e-4, atol=1e-3)
        assert counted == {"allreduce": calls["all_reduce"], "allgather": calls["gather_last"]}


@pytest.mark.parametrize(("size", "layers"), [(2, 1), (4, 3), (8, 2)])
def test_as_many_collectives_as_dtensor(size, layers):
    told = dict(
        line.split() for line in lines_of(DTENSOR, str(size), str(layers), env=dict(os.environ))
    )
    config = ModelConfig("llama", 64, 16, layers, 8, 8, 4, 32, 64)

    def work(comm):
        model = ParallelTransformer(config, comm)
        load_weights(model, stored(dummy_model(config)))
        scores(model, torch.arange(5))
        return {kind: count.calls for kind, count in comm.counts.by_kind.items()}

    for calls in run_ranks(size, work):
        assert calls["all_reduce"] == int(told["all_reduce"])
        assert calls["gather_last"] == int(told["all_gather_into_tensor"])


def stored(model):
    reads = Reads()
    return {name: StoredTensor(tensor, reads) for name, tensor in model.state_dict().items()}


@st.composite
def geometries(draw):
    """A config and a number of ranks that divides its query heads."""
    number = st.integers(1, 4)
    size, groups = draw(st.integers(1, 8)), draw(number)
    heads = size * groups * draw(st.integers(1, 2))
    family = draw(st.sampled_from(["llama", "qwen2", "qwen3", "gpt2"]))
    config = ModelConfig(
        family,
        draw(st.integers(1, 70)),
        draw(st.integers(1, 24)),
        draw(st.integers(1, 3)),
        heads,
        heads if family == "gpt2" else groups,
        2 * draw(st.integers(1, 3)),
        draw(st.integers(1, 20)),
        64,
        norm_eps=0.1,
        tie_embeddings=draw(st.booleans()),
        qk_norm=family == "qwen3",
        qkv_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
    )
    return config, size


@settings(max_examples=40, deadline=None)
@given(geometries(), st.integers(0, 999), st.integers(1, 9))
def test_any_shape(geometry, seed, tokens):
    config, size = geometry
    whole = dummy_model(config, seed=seed)
    ids = torch.randint(0, config.vocab_size, (tokens,), generator=torch.manual_seed(seed))
    wanted = scores(whole, ids)

    def work(comm):
        model = ParallelTransformer(config, comm)
        load_weights(model, stored(whole))
        return scores(model, ids)

    for logits in run_ranks(size, work):
        torch.testing.assert_close(logits, wanted, rtol=1e-3, atol=1e-3)


def test_shapes_that_do_not_fit_are_refused_in_a_sentence():
    config = ModelConfig("llama", 64, 16, 1, 6, 3, 4, 32, 64)
    for size in (4, 12):
        with pytest.raises(ParallelError, match=f"6 query heads .* {size} ranks; choose"):
            run_ranks(size, lambda comm: ParallelTransformer(config, comm))


def test_a_tied_model_whose_file_has_two_matrices(tmp_path):
    """Equal ones are one; with different ones it is not tied, as for one rank."""
    make, options = FAMILIES["qwen3-tied"]
    save_random(tmp_path, make, **options)
    path = tmp_path / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for head in (
        tensors["model.embed_tokens.weight"].clone(),
        tensors["model.embed_tokens.weight"] * 2,
    ):
        path.unlink()
        save_file({**tensors, "lm_head.weight": head}, path)
        wanted = scores(load_model(tmp_path))
        for logits, _, _ in run_ranks(2, shards_scores(tmp_path)):
            torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-3)


def test_folders_that_cannot_be_cut_are_refused(tmp_path):
    shutil.copytree(TARGET, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    raw = json.loads(config.read_text())
    config.write_text(json.dumps({**raw, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(ParallelError, match="quantized"):
        Checkpoint(tmp_path / "model")
    config.write_text(json.dumps({**raw, "vocab_size": raw["vocab_size"] + 1}))
    with pytest.raises(ModelFolderError, match="do not belong together"):
        Checkpoint(tmp_path / "model")
    config.write_text(json.dumps(raw))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(ModelFolderError, match="cut short"):
        Checkpoint(tmp_path / "model")


def test_fingerprints_tell_folders_apart(tmp_path):
    shutil.copytree(TARGET, tmp_path / "same")
    assert Checkpoint(tmp_path / "same").fingerprint == Checkpoint(TARGET).fingerprint
    save_random(tmp_path, **SMALL)
    assert Checkpoint(tmp_path).fingerprint != Checkpoint(TARGET).fingerprint


def test_a_thread_that_dies_ends_the_wait_of_the_others():
    def work(comm):
        if comm.rank == 1:
            raise KeyError("weights")
        comm.receive(torch.empty(1), 1)

    with pytest.raises(KeyError, match="weights"):
        run_ranks(3, work)


@pytest.mark.parametrize("how", ["send", "receive"])
def test_ranks_that_wait_for_each_other_are_told(how):
    def work(comm):
        getattr(comm, how)(torch.empty(1), 1 - comm.rank)

    with pytest.raises(RankDied, match="every rank waits and none can go on"):
        run_ranks(2, work)


def test_messages_that_do_not_fit_are_refused():
    def mismatch(comm):
        if comm.rank:
            comm.send(torch.ones(3), 0)
        else:
            comm.receive(torch.empty(2), 1)

    with pytest.raises(ParallelError, match=r"expects 2 elements .* sent 3"):
        run_ranks(2, mismatch)
    with pytest.raises(ParallelError, match=r"send x.contiguous\(\)"):
        run_ranks(2, lambda comm: comm.send(torch.ones(3, 2).T, 1 - comm.rank))
    with pytest.raises(ParallelError, match="no line to rank 2"):
        run_ranks(2, lambda comm: comm.send(torch.ones(1), 2))


def test_places_where_ranks_cannot_meet(tmp_path):
    with pytest.raises(ParallelError, match="cannot meet others"):
        join_group(0, 2, f"file://{tmp_path}/none/meeting", timeout=1)
    with pytest.raises(RankDied, match="not all of 2 ranks came"):
        join_group(0, 2, f"file://{tmp_path}/meeting", timeout=1)
