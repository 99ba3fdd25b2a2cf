"""Task 4: tensor-parallel transformer."""

import dataclasses
import json
from math import gcd

import pytest
import torch
from safetensors.torch import save_file

from grader import expect
from grader.checks.on_ranks import on_ranks
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.config import ModelConfig, RopeScaling
from nanovllm.model.loader import dummy_model
from nanovllm.parallel.checkpoint import Checkpoint
from nanovllm.parallel.errors import ParallelError
from nanovllm.parallel.loading import load_shard, load_weights
from nanovllm.parallel.stored import Reads, StoredTensor
from nanovllm.parallel.transformer import ParallelAttention, ParallelMLP, ParallelTransformer

BIASED = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
QWEN3 = ModelConfig("qwen3", 29, 12, 2, 4, 2, 6, 14, 32, norm_eps=0.1, qk_norm=True)
FAMILIES = {
    "qwen3": QWEN3,
    "qwen3, tied": dataclasses.replace(QWEN3, tie_embeddings=True),
    "qwen2": ModelConfig("qwen2", 29, 12, 2, 4, 2, 6, 14, 32, qkv_bias=True),
    "llama": ModelConfig("llama", 30, 12, 2, 4, 4, 6, 13, 32, norm_eps=0.1, **BIASED),
    "llama, stretched": ModelConfig(
        "llama", 29, 12, 2, 4, 2, 6, 14, 32, rope_scaling=RopeScaling("linear", 4.0, 8)
    ),
    "mistral": ModelConfig("mistral", 29, 12, 2, 4, 1, 6, 14, 32, windows=(3, None)),
    "gpt2": ModelConfig("gpt2", 31, 24, 2, 4, 4, 6, 14, 32, tie_embeddings=True, **BIASED),
}
SUM = "o_proj and down_proj sum over the ranks, each once; nothing else is summed"


def stored(model, reads=None):
    """What a checkpoint of this model would hold."""
    reads = reads or Reads()
    return {name: StoredTensor(tensor, reads) for name, tensor in model.state_dict().items()}


def part_of(tensors, prefix):
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def some_tokens(rng, config, count=7):
    return torch.from_numpy(rng.integers(0, config.vocab_size, size=count))


def random_model(config, rng):
    return dummy_model(config, seed=int(rng.integers(1000)))


def told(config):
    return (
        f"{config.family}, H = {config.num_heads}, G = {config.num_kv_heads}, "
        f"I = {config.intermediate_size}, V = {config.vocab_size}"
    )


@pytest.mark.check(task=4, points=3, title="Attention on the rank's heads")
def test_attention(generator, rng):
    few = dataclasses.replace(QWEN3, num_heads=8)
    odd = dataclasses.replace(QWEN3, num_heads=6, num_kv_heads=3)
    cases = [(QWEN3, 2), (QWEN3, 4), (few, 4), (few, 8), (odd, 2), (FAMILIES["gpt2"], 2)]
    for config, size in [*cases, (FAMILIES["llama"], 4), (FAMILIES["qwen2"], 1)]:
        model = random_model(config, rng)
        x = torch.randn(5, config.hidden_size, generator=generator)
        rotation = model.positions.rotation(torch.arange(3, 8))
        attend = RecomputeAttend(config)
        wanted = model.layers[1].self_attn(x, rotation, attend)

        def work(comm, config=config, model=model, x=x, rotation=rotation, attend=attend):
            seen = []

            def watched(layer, q, k, v):
                seen.append([layer, list(q.shape), list(k.shape), list(v.shape)])
                return attend(layer, q, k, v)

            own = ParallelAttention(config, comm, layer=1)
            block = torch.nn.ModuleDict({"self_attn": own})
            load_weights(block, part_of(stored(model), "layers.1."))
            comm.counts.clear()
            out = own(x, rotation, watched)
            return out, seen, {kind: c.calls for kind, c in comm.counts.by_kind.items()}

        call = (
            f"ParallelAttention(config, comm, layer=1)(x [5, E]) on {size} ranks ({told(config)})"
        )
        heads, dim = config.num_heads // size, config.head_dim
        groups = heads // gcd(heads, config.num_heads // config.num_kv_heads)
        for rank, (out, seen, costs) in enumerate(on_ranks(size, work, call=call)):
            expect(
                seen,
                [[1, [5, heads, dim], [5, groups, dim], [5, groups, dim]]],
                call=f"layer and shapes of q, k and v that attend gets: {call}, rank {rank}",
                cause="attend is called once, with the model's number of the layer and the rank's "
                "heads",
            )
            expect(out, wanted, call=f"{call}, rank {rank}",
                   cause="query head h uses key/value head h // (H / G); the norms of q and k span "
                   f"one head, and are not cut; {SUM}")  # fmt: skip
            expect(costs, {"all_reduce": 1}, call=f"collectives of {call}, rank {rank}", cause=SUM)


@pytest.mark.check(task=4, points=2, title="The MLP on the rank's neurons")
def test_mlp(generator, rng):
    few = dataclasses.replace(FAMILIES["llama"], intermediate_size=3)
    cases = [(FAMILIES[name], size) for name in ("qwen3", "llama", "gpt2") for size in (1, 2, 4)]
    for config, size in [*cases, (few, 4), (FAMILIES["llama"], 3)]:
        model = random_model(config, rng)
        x = torch.randn(5, config.hidden_size, generator=generator)
        wanted = model.layers[0].mlp(x)

        def work(comm, config=config, model=model, x=x):
            own = ParallelMLP(config, comm)
            block = torch.nn.ModuleDict({"mlp": own})
            load_weights(block, part_of(stored(model), "layers.0."))
            comm.counts.clear()
            out = own(x)
            return out, {kind: count.calls for kind, count in comm.counts.by_kind.items()}

        call = f"ParallelMLP(config, comm)(x [5, E]) on {size} ranks ({told(config)})"
        for rank, (out, costs) in enumerate(on_ranks(size, work, call=call)):
            expect(out, wanted, call=f"{call}, rank {rank}",
                   cause="a neuron is whole on one rank: its gate, its up and its column of down; "
                   "GPT-2's has no gate, and a gelu in tanh form")  # fmt: skip
            expect(costs, {"all_reduce": 1}, call=f"collectives of {call}, rank {rank}",
                   cause="only down_proj sums: each neuron is whole on its rank")  # fmt: skip


def step(model, ids, positions=None):
    positions = torch.arange(len(ids)) if positions is None else positions
    hidden = model(ids, positions, RecomputeAttend(model.config))
    return hidden, model.logits(hidden[1:])


def parallel(comm, config, tensors):
    model = ParallelTransformer(config, comm)
    load_weights(model, tensors)
    return model


@pytest.mark.check(task=4, points=3, title="The model's scores, of every family")
def test_families(rng):
    for name, config in FAMILIES.items():
        model, ids = random_model(config, rng), some_tokens(rng, config)
        positions = torch.arange(4, 11)
        with torch.inference_mode():
            hidden, logits = step(model, ids, positions)
        for size in (1, 2, 4):

            def work(comm, config=config, model=model, ids=ids, positions=positions):
                own = parallel(comm, config, stored(model))
                return (*step(own, ids, positions), own.config)

            call = f"ParallelTransformer of {name} on {size} ranks, 7 tokens ({told(config)})"
            for rank, (got, scores, mine) in enumerate(on_ranks(size, work, call=call)):
                expect(
                    [mine.num_heads, mine.num_layers, mine.vocab_size],
                    [config.num_heads // size, 2, config.vocab_size],
                    call=f"heads, layers and vocabulary of model.config: {call}, rank {rank}",
                    cause="config is rank_config(...): by it the rank's K/V cache is made",
                )
                expect(got, hidden, call=f"hidden states of {call}, rank {rank}",
                       cause="each residual stream is whole on each rank; a block adds to it "
                       "what its sublayers give")  # fmt: skip
                expect(scores, logits, call=f"logits of {call}, rank {rank}",
                       cause="the head is lm_head, or the embedding where it is tied")  # fmt: skip


@pytest.mark.check(task=4, points=2, title="2 L + 1 all-reduces and one gather")
def test_counts(rng):
    for config in (QWEN3, dataclasses.replace(FAMILIES["gpt2"], num_layers=3)):
        model = random_model(config, rng)
        for size, tokens in ((2, 1), (2, 9), (4, 3)):
            ids = some_tokens(rng, config, tokens)

            def work(comm, config=config, model=model, ids=ids):
                own = parallel(comm, config, stored(model))
                comm.counts.clear()
                hidden = own(ids, torch.arange(len(ids)), RecomputeAttend(own.config))
                before = comm.counts["gather_last"].calls
                own.logits(hidden[-1:])
                calls = {kind: count.calls for kind, count in comm.counts.by_kind.items()}
                return before, calls, comm.counts.bytes

            call = (
                f"a step of {tokens} tokens, and the logits of one row, {config.num_layers} layers"
            )
            call += f" on {size} ranks"
            found = on_ranks(size, work, call=call)
            sums = 2 * config.num_layers + 1
            for rank, (before, calls, _) in enumerate(found):
                expect(
                    [before, calls],
                    [0, {"all_reduce": sums, "gather_last": 1}],
                    call=f"gathers before the logits, calls of collectives: {call}, rank {rank}",
                    cause="a sum for the embedding, two for each layer, a gather for the logits",
                )
            summed = 2 * (size - 1) * sums * tokens * config.hidden_size
            expect(
                sum(sent for _, _, sent in found),
                4 * (summed + (size - 1) * config.vocab_size),
                call=f"bytes that all ranks send in {call}",
                cause="[T, E] is summed, and one row of V scores is gathered, in a ring each",
            )


@pytest.mark.check(task=4, points=1, title="All ranks draw the same token")
def test_same_token(rng):
    for name in ("qwen3", "gpt2"):
        config = FAMILIES[name]
        model, ids = random_model(config, rng), some_tokens(rng, config, 6)
        seed = int(rng.integers(1000))

        def work(comm, config=config, model=model, ids=ids, seed=seed):
            own = parallel(comm, config, stored(model))
            hidden, logits = step(own, ids)
            noise = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed))
            return hidden, logits, (logits - (-noise.log()).log()).argmax(-1)

        for size in (2, 4):
            call = f"hidden states and logits of {name} on {size} ranks"
            found = on_ranks(size, work, call=call)
            for rank, of_rank in enumerate(found):
                whats = ("hidden states", "logits", "tokens drawn with one seed from the logits")
                for what, mine, first in zip(whats, of_rank, found[0], strict=True):
                    expect(
                        mine,
                        first,
                        call=f"{what} of {name} on {size} ranks: rank {rank} against rank 0",
                        cause="the same bits on all ranks: each sum is made once",
                        rtol=0,
                        atol=0,
                    )


NAMES = {
    "embed_tokens": "wte",
    "positions": "wpe",
    "norm": "ln_f",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}


def as_gpt2(state):
    """GPT-2's names, its matrices [in, out], and q, k and v side by side."""
    found = {}
    for name, tensor in state.items():
        layer, module = "", name.rpartition(".")[0]
        kind = name.rpartition(".")[2]
        if module.startswith("layers."):
            _, number, module = module.split(".", 2)
            layer = f"h.{number}."
            tensor = tensor.T if tensor.ndim == 2 else tensor
        if module == "self_attn.q_proj":
            parts = [state[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            joined = torch.cat([part.T for part in parts], dim=-1) if kind == "weight" else None
            found[f"{layer}attn.c_attn.{kind}"] = torch.cat(parts) if joined is None else joined
        elif module not in ("self_attn.k_proj", "self_attn.v_proj"):
            found[f"{layer}{NAMES[module]}.{kind}"] = tensor
    return {name: tensor.contiguous() for name, tensor in found.items()}


def as_llama(state):
    return {
        name if name.startswith("lm_head") else f"model.{name}": tensor.contiguous()
        for name, tensor in state.items()
    }


def save(folder, config, model, **more):
    """A model folder as transformers writes it."""
    folder.mkdir()
    if config.family == "gpt2":
        raw = {"model_type": "gpt2", "activation_function": "gelu_new",
               "n_embd": config.hidden_size, "n_head": config.num_heads,
               "n_layer": config.num_layers, "n_inner": config.intermediate_size,
               "n_positions": config.max_position,
               "layer_norm_epsilon": config.norm_eps}  # fmt: skip
    else:
        raw = {"model_type": config.family, "hidden_act": "silu", "head_dim": config.head_dim,
               "hidden_size": config.hidden_size, "num_attention_heads": config.num_heads,
               "num_key_value_heads": config.num_kv_heads, "num_hidden_layers": config.num_layers,
               "intermediate_size": config.intermediate_size, "rms_norm_eps": config.norm_eps,
               "max_position_embeddings": config.max_position}  # fmt: skip
    raw |= {"vocab_size": config.vocab_size, "tie_word_embeddings": config.tie_embeddings}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    state = model.state_dict()
    tensors = as_gpt2(state) if config.family == "gpt2" else as_llama(state)
    save_file(tensors | more, folder / "model.safetensors")
    return folder


def bytes_of_rank(config, model, size, rank):
    """What a rank reads in float32: its share of what is cut, and all of the rest."""
    heads, dim = config.num_heads // size, config.head_dim
    group = config.num_heads // config.num_kv_heads
    groups = len({h // group for h in range(rank * heads, (rank + 1) * heads)})
    share = {"q_proj": heads * dim, "k_proj": groups * dim, "v_proj": groups * dim}
    inner = len(torch.arange(config.intermediate_size).tensor_split(size)[rank])
    tokens = len(torch.arange(config.vocab_size).tensor_split(size)[rank])
    share |= {"gate_proj": inner, "up_proj": inner, "embed_tokens": tokens, "lm_head": tokens}
    columns = {"o_proj": heads * dim, "down_proj": inner}
    total = 0
    for name, tensor in model.state_dict().items():
        module, kind = name.split(".")[-2:]
        rows = share.get(module, tensor.shape[0])
        if kind == "bias" or tensor.ndim == 1:
            total += rows
        else:
            total += rows * columns.get(module, tensor.shape[1])
    return 4 * total


@pytest.mark.check(task=4, points=3, title="A rank reads its part of the files alone")
def test_load(rng, tmp_path):
    for name in ("qwen3", "qwen3, tied", "qwen2", "gpt2"):
        config = FAMILIES[name]
        model, ids = random_model(config, rng), some_tokens(rng, config, 5)
        folder = save(tmp_path / name.replace(", ", "-"), config, model)
        with torch.inference_mode():
            _, wanted = step(model, ids)
        for size, dtype in ((1, torch.float32), (4, torch.float32), (2, torch.bfloat16)):

            def work(comm, folder=folder, ids=ids, dtype=dtype):
                checkpoint = Checkpoint(folder)
                own = load_shard(checkpoint, comm, dtype=dtype)
                state = {
                    "training": own.training,
                    "requires_grad": any(p.requires_grad for p in own.parameters()),
                    "dtypes": sorted({str(p.dtype) for p in own.parameters()}),
                }
                return step(own, ids)[1], checkpoint.reads.bytes, state

            call = f"load_shard(Checkpoint(folder of {name}), comm, dtype={dtype}) on {size} ranks"
            for rank, (logits, read, state) in enumerate(on_ranks(size, work, call=call)):
                expect(
                    state,
                    {"training": False, "requires_grad": False, "dtypes": [str(dtype)]},
                    call=f"the model of {call}, rank {rank}",
                    cause="it is there to compute, in the dtype asked for",
                )
                expect(
                    read,
                    bytes_of_rank(config, model, size, rank),
                    call=f"bytes read by {call}, rank {rank}",
                    cause="its own rows or columns of what is cut, and the norms and GPT-2's "
                    "positions whole; a row-parallel bias is whole, too",
                )
                if dtype is torch.float32:
                    expect(logits, wanted, call=f"logits after {call}, rank {rank}")
    for size in (3, 8):
        expect.raises(
            ParallelError,
            lambda size=size: on_ranks_refused(size),
            call=f"ParallelTransformer of 4 query heads on {size} ranks",
            cause="ParallelError on each rank, before anything is sent",
        )


def on_ranks_refused(size):
    """Rank 1's own call, without the others: nobody may wait for them."""
    from nanovllm.parallel.threads import thread_communicators

    return ParallelTransformer(QWEN3, thread_communicators(size, timeout=1)[1])


@pytest.mark.check(task=4, points=1, title="Any shape on any number of ranks (random)")
def test_random(rng):
    for _ in range(6):
        size = int(rng.choice([1, 2, 3, 4]))
        groups = int(rng.integers(1, 5))
        heads = size * groups * int(rng.integers(1, 3)) // gcd(size, groups)
        family = str(rng.choice(["llama", "qwen3", "gpt2"]))
        groups = heads if family == "gpt2" else groups
        hidden = 4 * heads if family == "gpt2" else int(rng.integers(3, 20))
        config = ModelConfig(
            family,
            int(rng.integers(2, 40)),
            hidden,
            int(rng.integers(1, 4)),
            heads,
            groups,
            4,
            int(rng.integers(1, 20)),
            32,
            norm_eps=0.1,
            tie_embeddings=bool(rng.integers(2)),
            qk_norm=family == "qwen3",
            qkv_bias=bool(rng.integers(2)),
            output_bias=bool(rng.integers(2)),
            mlp_bias=bool(rng.integers(2)),
        )
        model, ids = random_model(config, rng), some_tokens(rng, config, int(rng.integers(2, 9)))
        with torch.inference_mode():
            _, wanted = step(model, ids)

        def work(comm, config=config, model=model, ids=ids):
            return step(parallel(comm, config, stored(model)), ids)[1]

        call = f"logits of {len(ids)} tokens on {size} ranks"
        for rank, logits in enumerate(on_ranks(size, work, call=call)):
            expect(logits, wanted, call=f"{call}, rank {rank} ({told(config)})",
                   given={"config": str(config)}, rtol=1e-3, atol=1e-4)  # fmt: skip
