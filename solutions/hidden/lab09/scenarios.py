"""Hidden scenarios of lab 09: other paths than those of the visible checks."""

from grader.checks.kernel_plans import launched
from grader.checks.scenarios import scenario

# task 1


@scenario(task=1)
def grids_of_random_weights(nanovllm, rng):
    """Ranges whose ends and zero places are whole numbers of steps, so that no rounding is near.

    Some have one sign alone: 0 is at one of their ends, but not among the weights.
    """
    import numpy as np
    import torch

    from nanovllm.quantization.grids import fit_grid, nearest_codes
    from nanovllm.quantization.scheme import Scheme

    story = []
    for kind in rng.permutation(8):
        bits, rows = int(rng.choice([2, 3, 4, 8])), int(rng.integers(1, 6))
        size, groups = int(rng.integers(2, 9)), int(rng.integers(1, 5))
        columns = size * groups - int(rng.integers(0, size - 1))
        last, step = 2**bits - 1, 2.0 ** int(rng.integers(-6, 3))
        zeros = rng.integers(0, 2**bits, size=(rows, groups))
        whole = rng.integers(0, 2**bits, size=(rows, columns))
        for group in range(groups):  # both ends are there, but not always within the range of 0
            whole[:, group * size], whole[:, group * size + 1] = 0, last
        if kind == 0:
            whole, zeros = whole.clip(min=1), np.zeros_like(zeros)
        elif kind == 1:
            whole, zeros = whole.clip(max=last - 1), np.full_like(zeros, last)
        weight = torch.from_numpy((whole - zeros.repeat(size, axis=1)[:, :columns]) * step).float()
        grid = fit_grid(weight, Scheme(bits, size))
        inside = weight + (torch.from_numpy(rng.uniform(-0.4, 0.4, size=weight.shape)) * step)
        story.append([grid.scales, grid.zeros, grid.group_of, nearest_codes(inside, grid)])
        even = fit_grid(weight.double(), Scheme(bits, size, symmetric=True))
        story.append([even.scales, even.zeros, even.symmetric, even.num_codes])
    return {"story": story}


@scenario(task=1)
def rounding_a_small_model(nanovllm, rng):
    """Every linear of a random model by RTN in bfloat16's weights: bits, errors, sums of codes."""
    import torch

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.quantization.grids import round_to_nearest
    from nanovllm.quantization.linear import linears
    from nanovllm.quantization.measures import bits_per_weight
    from nanovllm.quantization.scheme import Scheme

    config = ModelConfig("qwen3", 32, 24, 1, 4, 2, 6, 40, 16, qk_norm=True)
    model = dummy_model(config, seed=int(rng.integers(1000)), dtype=torch.bfloat16)
    scheme = Scheme(int(rng.choice([2, 3, 4, 8])), int(rng.integers(3, 30)), bool(rng.integers(2)))
    story = {}
    for name, linear in linears(model):
        found = round_to_nearest(linear.weight, scheme)
        error = (found.dequantize() - linear.weight.float()).abs()
        steps = error / found.grid.scales[:, found.grid.group_of.long()]
        story[name] = [
            round(bits_per_weight(found), 6),
            round(float(error.mean()), 3),
            bool(steps.max() < 0.6),
            found.codes.dtype,
        ]
    return story


@scenario(task=1)
def perplexity_of_texts(nanovllm, rng):
    """Texts of other lengths and dtypes."""
    import torch

    from nanovllm.quantization.measures import perplexity

    texts = [torch.from_numpy(rng.exponential(2, size=int(n))) for n in rng.integers(1, 50, size=7)]
    return {
        "float64": round(float(perplexity(texts)), 6),
        "float32": round(float(perplexity([text.float() for text in texts])), 3),
        "one": round(float(perplexity(texts[:1])), 6),
    }


# task 2


def _codes_on_a_grid(rng, rows, columns, scheme, mixed=False):
    import torch

    from nanovllm.quantization.grid import Grid, QuantizedWeight

    size = scheme.group_size or columns
    group_of = torch.arange(columns) // size
    if mixed:
        group_of = group_of[torch.from_numpy(rng.permutation(columns))]
    shape, last = (rows, -(-columns // size)), 2**scheme.bits
    zeros = rng.integers(0, last, size=shape) * (not scheme.symmetric)
    zeros = torch.from_numpy(zeros + (last // 2) * scheme.symmetric).to(torch.uint8)
    scales = torch.from_numpy(rng.uniform(1e-3, 0.1, size=shape)).half().float()
    codes = torch.from_numpy(rng.integers(0, last, size=(rows, columns))).to(torch.uint8)
    return QuantizedWeight(codes, Grid(scheme.bits, scales, zeros, group_of))


@scenario(task=2)
def tensors_of_every_layout(nanovllm, rng):
    """What would stand in a file, of weights of other sizes and of 2 and 3 bits, too.

    The scales of one weight are another's, and too large for float16.
    """
    from dataclasses import replace

    from nanovllm.quantization import layouts
    from nanovllm.quantization.scheme import Scheme

    story = []
    for kind in rng.permutation(6):
        rows, columns = rng.integers(1, 36, size=2).tolist()
        size = int(rng.integers(1, 40)) if rng.random() < 0.6 else None
        bits = int(rng.choice([4, 8] if kind == 0 else [2, 3, 4, 8]))
        scheme = Scheme(bits, size, bool(rng.integers(2)))
        weight = _codes_on_a_grid(rng, rows, columns, scheme)
        if kind == 0:
            grid = replace(weight.grid, scales=weight.grid.scales * 2.0**30)
            weight = replace(weight, grid=grid)
        found = {"packed": layouts.to_pack_quantized(weight, scheme)}
        if scheme.bits != 3:
            found["gptq"] = layouts.to_gptq(weight)
            found["gptq_v2"] = layouts.to_gptq(weight, 2)
        if scheme.bits in (4, 8):
            found["awq"] = layouts.to_awq(weight)
        if scheme.bits == 8:
            found["int"] = layouts.to_int_quantized(weight, scheme)
        story += [[layout, sorted(tensors.items())] for layout, tensors in found.items()]
    return {"story": story}


@scenario(task=2)
def words_of_anything(nanovllm, rng):
    """Random words to codes in every layout: the words were never packed here."""
    import torch

    from nanovllm.quantization import layouts
    from nanovllm.quantization.packing import pack, unpack
    from nanovllm.quantization.scheme import Scheme

    def words(*shape):
        drawn = rng.integers(-(2**31), 2**31, size=shape)
        return torch.from_numpy(drawn).to(torch.int32)

    def scales(*shape):
        return torch.from_numpy(rng.uniform(0.01, 1, size=shape)).half()

    story = []
    for bits in (4, 8):
        per_word, groups = 32 // bits, int(rng.integers(1, 4))
        rows, columns = per_word * int(rng.integers(1, 4)), per_word * groups * 2
        scheme = Scheme(bits, columns // groups)
        taken = words(rows, columns // per_word)
        story.append([unpack(taken, bits, columns), pack(unpack(taken, bits, columns), bits)])
        g_idx = torch.from_numpy(rng.integers(0, groups, size=columns)).int()
        gptq = {"qweight": words(columns // per_word, rows), "scales": scales(groups, rows),
                "qzeros": words(groups, rows // per_word), "g_idx": g_idx}  # fmt: skip
        awq = {"qweight": words(columns, rows // per_word), "scales": scales(groups, rows),
               "qzeros": words(groups, rows // per_word)}  # fmt: skip
        packed = {"weight_packed": taken, "weight_scale": scales(rows, groups),
                  "weight_zero_point": words(rows // per_word, groups),
                  "weight_shape": torch.tensor([rows, columns])}  # fmt: skip
        for found in (layouts.from_gptq(gptq, scheme), layouts.from_gptq(gptq, scheme, 2),
                      layouts.from_awq(awq, scheme),
                      layouts.from_pack_quantized(packed, scheme)):  # fmt: skip
            story.append([found.codes, found.grid.zeros, found.grid.scales, found.dequantize()])
    return {"story": story}


@scenario(task=2)
def from_one_layout_to_another(nanovllm, rng):
    """A weight goes through all layouts, one after another, with groups mixed up where they may."""
    from nanovllm.quantization import layouts
    from nanovllm.quantization.scheme import Scheme

    rows, columns = rng.integers(2, 50, size=2).tolist()
    scheme = Scheme(8, int(rng.integers(1, columns + 1)))
    weight = _codes_on_a_grid(rng, rows, columns, scheme, mixed=True)
    mixed = layouts.from_gptq(layouts.to_gptq(weight), scheme)
    weight = _codes_on_a_grid(rng, rows, columns, scheme)
    weight = layouts.from_awq(layouts.to_awq(weight), scheme)
    weight = layouts.from_gptq(layouts.to_gptq(weight), scheme)
    weight = layouts.from_int_quantized(layouts.to_int_quantized(weight, scheme), scheme)
    weight = layouts.from_pack_quantized(layouts.to_pack_quantized(weight, scheme), scheme)
    return {
        "mixed": [mixed.dequantize(), mixed.grid.group_of.tolist()],
        "last": [weight.dequantize(), weight.codes, weight.grid.zeros],
    }


# task 3


@scenario(task=3)
def gptq_on_odd_hessians(nanovllm, rng):
    """Equal inputs, few inputs, none; groups that do not lie side by side; one row or column."""
    import torch

    from nanovllm.quantization.gptq import gptq, hessian
    from nanovllm.quantization.grid import Grid

    story = []
    for _ in range(8):
        rows, columns, n = (int(rng.integers(1, top)) for top in (7, 50, 60))
        bits, groups = int(rng.choice([2, 3, 4, 8])), int(rng.integers(1, 6))
        x = torch.from_numpy(rng.normal(size=(n, columns)) * rng.exponential(size=columns)).float()
        if columns > 3:
            x[:, 1] = x[:, 0]
            x[:, 2] = 0.0
        if rng.random() < 0.15:
            x *= 0.0
        scales = torch.from_numpy(rng.uniform(0.05, 0.9, size=(rows, groups))).half().float()
        zeros = torch.from_numpy(rng.integers(0, 2**bits, size=(rows, groups))).to(torch.uint8)
        group_of = torch.from_numpy(rng.integers(0, groups, size=columns))
        grid = Grid(bits, scales, zeros, group_of)
        weight = torch.from_numpy(rng.normal(size=(rows, columns))).float()
        h = hessian(x)
        damping, size = float(rng.choice([0.003, 0.01, 0.5])), int(rng.integers(1, 60))
        found = gptq(weight, h, grid, damping, size, bool(rng.integers(2)))
        story.append([h, found.codes, found.dequantize()])
    return {"story": story}


@scenario(task=3)
def layers_that_are_replaced(nanovllm, rng):
    """A quantizer that puts other modules in place of some; biases, shared heads, positions that
    are learned; the model afterwards, and the hooks that are left in it."""
    import torch
    from torch import nn

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.quantization.by_layer import quantize_by_layer
    from nanovllm.quantization.held_out import hidden_states
    from nanovllm.quantization.linear import replace_linear

    story, told, after = [], [], []

    def halve(block, inputs):
        story.append({name: inputs[name].clone() for name in sorted(inputs)})
        for name in sorted(inputs)[:: int(rng.integers(2, 4))]:
            old = block.get_submodule(name)
            new = nn.Linear(old.in_features, old.out_features, bias=old.bias is not None)
            new.weight.data = old.weight.data * 0.5
            if old.bias is not None:
                new.bias.data = old.bias.data + 0.1
            replace_linear(block, name, new)

    for family, kv_heads in (("qwen2", 1), ("gpt2", 4)):
        more = dict.fromkeys(("qkv_bias", "mlp_bias"), family == "gpt2" or bool(rng.integers(2)))
        config = ModelConfig(family, 30, 12, 3, 4, kv_heads, 4, 10, 40, **more)
        model = dummy_model(config, seed=int(rng.integers(1000)))
        size = int(rng.integers(2, 9)), int(rng.integers(1, 9))
        rows = torch.from_numpy(rng.integers(0, 30, size=size))
        quantize_by_layer(model, rows, halve, lambda *done: told.append(list(done)))
        hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
        with torch.no_grad():
            after.append([sum(hooks), hidden_states(model, rows)])
    return {"inputs": story, "told": told, "after": after}


@scenario(task=3)
def gptq_of_blocks_in_bfloat16(nanovllm, rng):
    """Blocks of two families in bfloat16, symmetric and not, in groups or whole rows."""
    import torch
    from torch import nn

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.quantization.gptq import gptq_block
    from nanovllm.quantization.grids import fit_grid
    from nanovllm.quantization.scheme import Scheme

    def sure(weight, scheme):
        """Rows whose zero points and first codes lie in no middle: bfloat16 has few digits."""
        weight, grid = weight.float(), fit_grid(weight, scheme)
        groups = grid.group_of.long().expand_as(weight)
        low = torch.zeros_like(grid.scales).scatter_reduce(1, groups, weight, "amin")
        steps = torch.cat([low, weight[:, :1]], dim=1) / grid.scales[:, [*range(low.shape[1]), 0]]
        return ((steps % 1 - 0.5).abs() > 1e-4).all(dim=1)

    story = {}
    more = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
    for family in ("gpt2", "llama"):
        config = ModelConfig(family, 30, 12, 1, 2, 2, 6, 14, 40, **more)
        seed = int(rng.integers(1000))
        [block] = dummy_model(config, seed=seed, dtype=torch.bfloat16).layers
        inputs = {
            name: torch.from_numpy(rng.normal(size=(25, m.in_features))).bfloat16()
            for name, m in block.named_modules()
            if isinstance(m, nn.Linear)
        }
        for x in inputs.values():
            x[:, 0] *= 4  # the first in any order
        size = [None, int(rng.integers(3, 15))][int(rng.integers(2))]
        scheme = Scheme(int(rng.choice([2, 4])), size, bool(rng.integers(2)))
        rows = {name: sure(block.get_submodule(name).weight, scheme) for name in inputs}
        gptq_block(block, inputs, scheme, act_order=bool(rng.integers(2)))
        for name, kept in rows.items():
            found = block.get_submodule(name)
            codes = found.weight_codes.codes[kept]
            story[f"{family} {name}"] = [kept, codes, found.bias, found.stored_bits]
    return story


# task 4


@scenario(task=4)
def scales_of_random_readers(nanovllm, rng):
    """Channels read by any number of columns, any schemes, inputs of very different sizes."""
    import torch

    from nanovllm.quantization.awq import search_scale
    from nanovllm.quantization.scheme import Scheme

    story = []
    for _ in range(6):
        channels = int(rng.integers(2, 8))
        channel_of = rng.permutation([*range(channels), *rng.integers(0, channels, size=9)])
        columns = len(channel_of)
        x = rng.normal(size=(30, columns)) * rng.exponential(size=columns) ** 3
        weights = [
            torch.from_numpy(rng.normal(size=(int(n), columns))).float()
            for n in rng.integers(1, 7, size=int(rng.integers(1, 4)))
        ]
        size = [None, int(rng.integers(2, 9))][int(rng.integers(2))]
        scheme = Scheme(int(rng.choice([2, 3, 4])), size, bool(rng.integers(2)))
        inputs = torch.from_numpy(x).float()
        story.append(search_scale(weights, inputs, torch.from_numpy(channel_of), scheme).float())
    return {"story": story}


@scenario(task=4)
def folds_into_any_module(nanovllm, rng):
    """Norms and linears, with and without bias, wide and narrow; one and several readers."""
    import torch
    from torch import nn

    from nanovllm.model.norms import LayerNorm, RMSNorm
    from nanovllm.quantization.awq import fold, value_channels

    torch.manual_seed(int(rng.integers(1000)))
    story = []
    for _ in range(6):
        kv_heads, shared, dim = (int(n) for n in rng.integers(1, 4, size=3))
        size = kv_heads * dim
        channel_of = value_channels(kv_heads * shared, kv_heads, dim)
        kinds = [
            RMSNorm(size, 1e-6),
            LayerNorm(size, 1e-6),
            nn.Linear(size, size),
            nn.Linear(5, size, bias=False),
        ]
        for source in kinds:
            readers = [nn.Linear(len(channel_of), 4, bias=bool(i)) for i in range(2)]
            scale = torch.from_numpy(rng.uniform(0.2, 4, size=size)).float()
            fold(source, readers, channel_of, scale)
            parts = [*source.parameters(), *(p for r in readers for p in r.parameters())]
            story.append([p.detach().clone() for p in parts])
    return {"story": story}


@scenario(task=4)
def clipping_with_dead_and_lone_weights(nanovllm, rng):
    """Groups of one weight, of zeros, and whose inputs are always 0; last groups cut short."""
    import torch

    from nanovllm.quantization.awq import clip
    from nanovllm.quantization.scheme import Scheme

    story = []
    for size in (1, 4, None):
        x = torch.from_numpy(rng.normal(size=(20, 9))).float()
        weight = torch.from_numpy(rng.standard_t(3, size=(4, 9))).float()
        weight[0, :4] = 0.0
        x[:, 4:8] = 0.0
        scheme = Scheme(int(rng.choice([2, 3])), size, bool(rng.integers(2)))
        story.append(clip(weight, x, scheme).float())
    return {"story": story}


@scenario(task=4)
def awq_of_blocks_by_layer(nanovllm, rng):
    """Whole small models, with channels of very different sizes: what the norms have become, what
    the linears keep on average, and whether nearly all weights are those that come of the scales,
    folds and bounds one by one."""
    import copy

    import torch

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.quantization.awq import awq_block, clip, fold, folds, search_scale
    from nanovllm.quantization.grids import round_to_nearest
    from nanovllm.quantization.linear import linears
    from nanovllm.quantization.plant_outliers import plant_outliers
    from nanovllm.quantization.scheme import Scheme

    config = ModelConfig("qwen3", 30, 16, 1, 4, 2, 4, 24, 40, qk_norm=True)
    model = dummy_model(config, seed=int(rng.integers(1000)))
    plant_outliers(model, 20.0, rng.choice(16, size=2, replace=False).tolist())
    [block] = model.layers
    wide = {name.removeprefix("layers.0."): m.in_features for name, m in linears(model)}
    one = {n: rng.normal(size=(30, n)) * 10.0 ** rng.normal(size=n) for n in {*wide.values()}}
    inputs = {name: torch.from_numpy(one[size]).float() for name, size in wide.items()}
    scheme, step = Scheme(int(rng.choice([3, 4])), 8), copy.deepcopy(block)
    awq_block(block, inputs, scheme, config.head_dim)

    divided = dict(inputs)
    for each in folds(step, config.head_dim):
        readers = [step.get_submodule(name) for name in each.readers]
        weights = [reader.weight for reader in readers]
        scale = search_scale(weights, inputs[each.readers[0]], each.channel_of, scheme)
        fold(step.get_submodule(each.source), readers, each.channel_of, scale)
        divided |= {name: inputs[name] / scale[each.channel_of] for name in each.readers}
    wrong, kept, kinds = {"scaled": [], "clipped": []}, [], []
    for name in wide:
        weight, found = step.get_submodule(name).weight, block.get_submodule(name)
        plain = name.endswith(("q_proj", "k_proj"))
        weight = weight if plain else clip(weight, divided[name], scheme)
        off = found.dequantize() - round_to_nearest(weight, scheme).dequantize()
        wrong["scaled" if plain else "clipped"] += (off.abs() > 1e-3 * weight.abs()).flatten()
        kept.append(found.dequantize().abs().mean())
        kinds.append(type(found).__name__)
    few = {kind: bool(torch.stack(off).float().mean() < 0.02) for kind, off in wrong.items()}
    norms = [block.input_layernorm.weight, block.post_attention_layernorm.weight]
    return {"norms": norms, "kept": torch.stack(kept).half(), "few wrong": few, "kinds": kinds}


# task 5


@scenario(task=5)
def tables_of_random_rows(nanovllm, rng):
    """Values of other kinds: heavy tails, far from 0, in two heaps; weights over many sizes."""
    import torch

    from nanovllm.quantization.kmeans import weighted_kmeans

    story = []
    for _ in range(6):
        rows, n, k = (
            int(rng.integers(1, 5)),
            int(rng.integers(1, 70)),
            int(rng.choice([2, 3, 4, 8])),
        )
        values = rng.standard_t(2, size=(rows, n)) * rng.exponential(size=(rows, 1))
        values += rng.choice([0.0, 3.0], size=values.shape) + rng.normal() * 10
        weights = torch.from_numpy(rng.exponential(size=(rows, n)) ** 3).float()
        values = torch.from_numpy(values).float()
        table, codes = weighted_kmeans(values, weights, k)
        off = (values - table.gather(1, codes.long())).double()
        error = (weights * off.square()).sum(dim=1)
        spread = (weights * (values - values.mean(dim=1, keepdim=True)).square()).sum(dim=1) + 1e-9
        story.append([(error / spread).float(), table.dtype, codes.dtype])
    return {"story": story}


@scenario(task=5)
def fisher_of_rows_and_their_parts(nanovllm, rng):
    """Rows by ones, twos and all; a model that asks for some gradients already."""
    import torch

    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.quantization.squeezellm import fisher_diagonal

    config = ModelConfig("llama", 30, 12, 2, 2, 1, 6, 14, 40, qkv_bias=True)
    model = dummy_model(config, seed=int(rng.integers(1000)))
    model.layers[0].self_attn.o_proj.weight.requires_grad_(True)
    rows = torch.from_numpy(rng.integers(0, 30, size=(4, int(rng.integers(2, 12)))))
    story = []
    for some in (rows, rows[:1], rows[1:3]):
        found = fisher_diagonal(model, some)
        top = max(float(value.mean()) for value in found.values())
        story.append({name: found[name] / top for name in sorted(found)})
    asks = [name for name, p in model.named_parameters() if p.requires_grad]
    return {"story": story, "asks": asks, "grad": [p.grad is None for p in model.parameters()]}


@scenario(task=5)
def squeezed_linears_at_work(nanovllm, rng):
    """Tables, sparse parts and products of linears with a few huge weights, which stay whole."""
    import torch
    from torch import nn

    from nanovllm.quantization.squeezellm import kept_apart, squeeze

    story = []
    for kind in rng.permutation(4):
        sparse, small = bool(kind), (32, 32) if kind == 1 else (10, 20)
        rows, columns = rng.integers(small, 40).tolist()  # over 1,000 in one, never 1,000
        linear = nn.Linear(columns, rows, bias=bool(rng.integers(2))).requires_grad_(False)
        linear.weight.data = torch.from_numpy(rng.standard_t(2, size=(rows, columns))).float()
        if linear.bias is not None:
            linear.bias.data = torch.from_numpy(rng.normal(size=rows)).float()
        fisher = torch.from_numpy(rng.exponential(size=(rows, columns)) ** 2).float()
        bits = int(rng.integers(2, 5))
        found = squeeze(linear, fisher, bits, sparse)
        x = torch.from_numpy(rng.normal(size=(3, columns))).float()
        apart = kept_apart(linear.weight, fisher)
        off = (found.dequantize() - linear.weight).square() * fisher.masked_fill(apart, 0.0)
        lost = (found.dequantize() - linear.weight).abs()
        whole = lost <= 1e-3 * (linear.weight.abs() + found.dense().abs())  # float16's digits
        own = x @ found.dequantize().T + (0 if linear.bias is None else linear.bias)
        story.append([
            apart, found.bits, found.stored_bits, round(float(off.sum() / fisher.sum()), 3),
            bool(((found(x) - own).abs() < 1e-3 * (1 + own.abs().max())).all()),
            not sparse or bool(whole[apart].all()),
            found(x.bfloat16()).dtype if linear.bias is None else None,
        ])  # fmt: skip
    return {"story": story}


@scenario(task=5)
def sparse_values_that_cancel(nanovllm, rng):
    """Sparse values that bfloat16 does not hold; all sums are small whole numbers."""
    import numpy as np
    import torch

    from nanovllm.quantization.table_linear import TableLinear

    story = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows, columns = int(rng.integers(2, 9)), int(rng.integers(2, 20))
        codes = torch.from_numpy(rng.integers(0, 4, size=(rows, columns))).to(torch.uint8)
        table = torch.from_numpy(rng.permuted(np.tile([-1.0, 0.0, 1.0, 2.0], (rows, 1)), axis=1))
        extra, x = torch.zeros(rows, columns), rng.integers(-1, 2, size=(3, columns))
        pair = rng.permutation(columns)[:2]
        x[:, pair] = rng.choice([-1, 1], size=(3, 1))
        extra[:, pair[0]] = torch.from_numpy(1025.0 + 2 * rng.integers(0, 40, size=rows))
        extra[:, pair[1]] = -extra[:, pair[0]] + torch.from_numpy(rng.integers(-9, 10, size=rows))
        bias = torch.from_numpy(rng.integers(-9, 10, size=rows)).to(dtype)
        linear = TableLinear(codes, table.float(), extra, bias if rng.random() < 0.5 else None)
        found = linear(torch.from_numpy(x).to(dtype))
        story.append([found.float(), str(found.dtype)])
    return {"story": story}


# task 8


def _kv_shape(rng):
    from nanovllm.model.config import ModelConfig

    layers, heads, dim = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(2, 25))
    return ModelConfig("qwen3", 50, 32, layers, 2 * heads, heads, dim, 48, 64, qk_norm=True)


def _kv_within(kind, x, read):
    """Whether every value is within the bound of its row, as the handout gives it."""
    largest, off = x.abs().amax(-1, keepdim=True), (read - x).abs()
    if kind == "fp8":
        return bool((off <= x.abs() / 15 + largest / 400_000).all())
    reach = x.amax(-1, keepdim=True).clamp(min=0) - x.amin(-1, keepdim=True).clamp(max=0)
    most = 0.51 * largest / 127 if kind == "int8" else 0.55 * reach / 15
    return bool((off <= most).all())


@scenario(task=8)
def kv_blocks_at_work(nanovllm, rng):
    """Blocks that fill up, are copied, swapped and given out again, in caches of random shapes.

    Every write has a token more that goes nowhere; some have rows of zeros or far from 0.
    """
    import numpy as np
    import torch

    from nanovllm.quantization.kv_cache import QuantizedCache

    story = []
    for kind in ("int8", "int4", "fp8"):
        config = _kv_shape(rng)
        heads, dim = config.num_kv_heads, config.head_dim
        blocks, size, layer = 6, int(rng.integers(1, 9)), int(rng.integers(config.num_layers))
        cache = QuantizedCache(config, blocks, size, num_host_blocks=2, kind=kind)
        most = 2 * config.num_layers * heads * ((dim + 1) // 2 if kind == "int4" else dim)
        most += 8 * config.num_layers * heads
        story.append(
            [QuantizedCache.bytes_per_token(config, kind) <= most,
             cache.nbytes == blocks * size * QuantizedCache.bytes_per_token(config, kind)]
        )  # fmt: skip
        rows = torch.from_numpy(rng.normal(size=(2, blocks * size, heads, dim))).float()
        cache.write(layer, rows[0], rows[1], torch.arange(blocks * size))  # none is unused
        known = {}  # block to its rows, as they read when they were written
        for step, special in enumerate(rng.permutation(14)):
            block = int(rng.integers(blocks)) if step else blocks - 1  # the last slot is known
            at = rng.permutation(size)[: int(rng.integers(1, size + 1)) if step else size]
            x = torch.from_numpy(rng.normal(size=(2, len(at) + 1, heads, dim))).float()
            x *= torch.from_numpy(10 ** rng.uniform(-4.5, 4.5, (2, len(at) + 1, heads, 1))).float()
            if special < 4:
                x += x.abs().amax() * float(rng.choice([-2, 2]))  # far from 0
            elif special < 8:
                x[:, :, int(rng.integers(heads))] = 0.0
            nowhere = int(rng.integers(len(at) + 1))
            slots = torch.from_numpy(np.insert(block * size + at, nowhere, -1))
            cache.write(layer, x[0], x[1], slots)
            x = x[:, slots >= 0]
            read = torch.stack(cache.read(layer, torch.tensor([block])))[:, 0]  # [2, P, G, D]
            old = known.get(block)
            others = [p for p in range(size) if p not in at]
            still = old is None or torch.equal(read[:, others], old[:, others])
            story.append([_kv_within(kind, x, read[:, at]), still])
            known[block] = read
            source, target = (int(b) for b in rng.permutation(blocks)[:2])
            if source in known:
                if rng.random() < 0.5:
                    cache.copy_blocks([(source, target)])
                else:
                    cache.swap_out([(source, 1)])
                    cache.swap_in([(1, target)])
                known[target] = known[source]
            ids = list(known)
            read = torch.stack(cache.read(layer, torch.tensor(ids)), dim=1)  # [N, 2, P, G, D]
            same = all(torch.equal(read[i], known[b]) for i, b in enumerate(ids))
            story.append([list(read.shape), same])
    return {"story": story}


@scenario(task=8)
def kv_beside_rows_that_are_no_numbers(nanovllm, rng):
    """One row of many is NaN or infinite, in bfloat16 and float32; it is the only one harmed."""
    import torch

    from nanovllm.quantization.kv_cache import QuantizedCache

    story = []
    for kind in ("int8", "int4", "fp8"):
        config, dtype = _kv_shape(rng), [torch.float32, torch.bfloat16][int(rng.integers(2))]
        size = (2, 9, config.num_kv_heads, config.head_dim)
        x = torch.from_numpy(rng.normal(size=size)).to(dtype)
        bad = tuple(int(rng.integers(n)) for n in size)
        cache = QuantizedCache(config, 3, 3, dtype, kind=kind)
        slots = torch.from_numpy(rng.permutation(9))
        found = []
        for value in (None, float(rng.choice([float("nan"), float("inf"), float("-inf")]))):
            if value is not None:
                x[bad] = value
            cache.write(0, x[0], x[1], slots)
            read = torch.stack(cache.read(0, torch.arange(3))).flatten(1, 2)[:, slots]
            found.append(read)
        clean, harmed = found
        row = bad[:3]
        story.append([str(harmed.dtype), bool(harmed[row].isfinite().all())])
        harmed[row] = clean[row]
        story.append(torch.equal(clean, harmed))
    return {"story": story}


@scenario(task=8)
def kv_histories_of_requests(nanovllm, rng):
    """Random prompts, samples, chunks, blocks, preemptions and aborts: are the texts the same?"""
    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.generation.events import Finished
    from nanovllm.generation.params import SamplingParams
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.quantization.kv_store import QuantizedStore

    kind, windows = str(rng.choice(["int8", "int4", "fp8"])), (None, 6)
    config = ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, windows=windows)
    model, trunk = dummy_model(config), rng.integers(3, 50, size=12).tolist()
    prompts = [trunk[: int(rng.choice([0, 5, 12]))] + rng.integers(3, 50, size=int(n)).tolist()
               for n in rng.integers(1, 7, size=4)]  # fmt: skip
    samples = rng.choice([1, 2], size=4).tolist()

    def texts(blocks, size, seats, budget, aborted, **options):
        store = QuantizedStore(config, blocks, size, kind=kind, **options)
        settings = EngineConfig(max_num_seqs=seats, max_num_batched_tokens=budget)
        engine, found, step = Engine(model, settings, store=store), {}, 0
        for i, (prompt, n) in enumerate(zip(prompts, samples, strict=True)):
            params = SamplingParams(temperature=0.8, n=n, max_tokens=7, ignore_eos=True)
            engine.add_request(prompt, params, seed=i, request_id=i)
        while engine.has_unfinished:
            for event in engine.step():
                if isinstance(event, Finished):
                    found[event.request_id, event.index] = list(event.completion.token_ids)
            if step == 3 and aborted is not None:
                engine.abort(aborted)
            engine.check()
            step += 1
        return found

    wanted = texts(8, 64, 1, 64, None, enable_prefix_caching=False)
    story = [sorted(wanted)]
    for preemption in ("recompute", "swap"):
        size, seats = int(rng.choice([1, 2, 4, 16])), int(rng.integers(2, 6))
        found = texts(
            -(-26 // size) + int(rng.integers(0, 3)), size, seats, seats + int(rng.integers(30)),
            int(rng.integers(4)), enable_prefix_caching=bool(rng.random() < 0.6),
            preemption=preemption, num_host_blocks=int(rng.choice([0, 5, 60])),
        )  # fmt: skip
        story.append(all(wanted[key] == text for key, text in found.items()))
        story.append(len({i for i, _ in found}) >= 3)
    return {"story": story}


# task 7


@scenario(task=7)
def int8_linears_of_random_shapes(nanovllm, rng):
    """Tokens of whole and quarter steps, which bfloat16 holds, so that no rounding is near.

    Each has a step of its own, one is all 0; and sums of products beyond 2^24.
    """
    import numpy as np
    import torch

    from nanovllm.quantization.grid import Grid, QuantizedWeight
    from nanovllm.quantization.int8_activations import Int8Linear, int8_matmul, quantize_tokens

    story = []
    for kind in rng.permutation(6):
        rows, columns = int(rng.integers(1, 40)), int(rng.integers(3, 300))
        shape = [(1,), (int(rng.integers(2, 30)),), (2, int(rng.integers(1, 9)))][kind % 3]
        dtype = [torch.float32, torch.bfloat16][kind // 3]
        steps = rng.integers(-110, 111, size=(*shape, columns))
        steps = steps + rng.choice([-0.25, 0.25], size=steps.shape) * (abs(steps) < 32)
        steps[..., -1] = 127.5  # the code is 127: there is no 128
        if kind % 3:
            steps.reshape(-1, columns)[int(rng.integers(shape[-1]))] = 0.0
        sizes = 2.0 ** rng.permuted(np.arange(-9, 21))[: steps[..., 0].size]
        x = torch.from_numpy(steps * sizes.reshape(*shape, 1)).to(dtype)
        codes, scales = quantize_tokens(x)
        weight = torch.from_numpy(rng.integers(0, 256, size=(rows, columns))).to(torch.uint8)
        grid = Grid(8, torch.from_numpy(rng.uniform(0.01, 1, size=(rows, 1))).half().float(),
                    torch.full((rows, 1), 128, dtype=torch.uint8),
                    torch.zeros(columns, dtype=torch.int32))  # fmt: skip
        bias = torch.from_numpy(rng.normal(size=rows)).to(dtype) if kind % 2 else None
        out = Int8Linear(QuantizedWeight(weight, grid), bias)(x)
        flat = codes.reshape(-1, columns)
        story.append([
            codes, scales.dtype, scales.flatten().tolist(), int8_matmul(flat, flat),
            [list(scales.shape), list(out.shape)], str(out.dtype), list(out.reshape(-1, rows)),
        ])  # fmt: skip
    large = torch.from_numpy(rng.integers(100, 128, size=(7, 1800))).to(torch.int8)
    return {"story": story, "large": int8_matmul(large[:3], large[3:])}


@scenario(task=7)
def smoothing_of_random_blocks(nanovllm, rng):
    """Scales of any strength, and the parameters of smoothed blocks of two families."""
    import torch

    from nanovllm.model.block import DecoderBlock
    from nanovllm.model.config import ModelConfig
    from nanovllm.quantization.smoothquant import smooth_block, smoothing_scale

    def random(*shape, scale=1.0):
        return torch.from_numpy(scale * rng.normal(size=shape)).float()

    story = []
    for family in ("llama", "gpt2"):
        strength, biased = float(rng.uniform(0, 1)), family == "gpt2"
        config = ModelConfig(family, 50, 8, 1, 4, 2, 4, 12, 64, qkv_bias=True, output_bias=biased,
                             mlp_bias=biased)  # fmt: skip
        block = DecoderBlock(config, 0).requires_grad_(False)
        for parameter in block.parameters():
            parameter.copy_(random(*parameter.shape))
        inputs = {name: random(11, module.in_features, scale=3.0)
                  for name, module in block.named_modules()
                  if isinstance(module, torch.nn.Linear)}  # fmt: skip
        for one in "kv":
            inputs[f"self_attn.{one}_proj"] = inputs["self_attn.q_proj"]
        if "mlp.gate_proj" in inputs:
            inputs["mlp.up_proj"] = inputs["mlp.gate_proj"]
        weights = [random(3, 12), random(1, 12)]
        story.append(smoothing_scale(inputs["mlp.down_proj"], weights, strength))
        smooth_block(block, inputs, config.head_dim, strength)
        story.append({name: value.clone() for name, value in block.state_dict().items()})
    return {"story": story}


# task 6


@scenario(task=6)
def kernels_of_w4a16(nanovllm, rng):
    """The kernel by itself, in an ordinary case: what is computed in torch comes to nothing."""
    import torch

    x = torch.from_numpy(rng.integers(-2, 3, size=(int(rng.integers(1, 9)), 64))).float()
    words = torch.from_numpy(rng.integers(-(1 << 31), 1 << 31, size=(32, 8))).int()
    scales = torch.from_numpy(rng.choice([0.5, 1.0, 2.0], size=(32, 2)))
    zeros = torch.from_numpy(rng.integers(0, 16, size=(32, 2))).to(torch.uint8)
    parts = x, words, scales.float(), zeros, torch.arange(64, dtype=torch.int32) // 32
    return {"product": launched("quantization.w4a16:w4a16", *parts)}


@scenario(task=6)
def products_of_packed_weights(nanovllm, rng):
    """Random shapes, groups and strides; small whole numbers, so that every sum is exact.

    One has so many inputs in bfloat16 that only float32 holds the sums.
    """
    import torch

    from nanovllm.kernels.runtime import DEVICE
    from nanovllm.quantization.w4a16 import w4a16

    story = []
    for long in rng.permutation([True, *[False] * 6]):
        rows, outputs, inputs = (int(rng.integers(1, n)) for n in (40, 50, 150))
        dtype = [torch.float32, torch.bfloat16, torch.float16][int(rng.integers(3))]
        if long:
            rows, outputs, inputs, dtype = 8, outputs + 8, inputs + 130, torch.bfloat16
        groups = int(rng.integers(1, 1 + min(inputs, 9)))
        x = torch.from_numpy(rng.integers(-2, 3, size=(rows, inputs))).to(dtype)
        words = rng.integers(-(1 << 31), 1 << 31, size=(outputs, -(-inputs // 8)))  # tails, too
        words = torch.from_numpy(words).int()
        scales = torch.from_numpy(rng.choice([0.5, 1.0, 2.0], size=(outputs, groups))).half()
        zeros = torch.from_numpy(rng.integers(0, 16, size=(outputs, groups))).to(torch.uint8)
        group_of = rng.integers(0, groups, size=inputs)
        if rng.random() < 0.5:  # one after another
            group_of.sort()
        group_of = torch.from_numpy(group_of).int()
        parts = [part.to(DEVICE) for part in (x, words, scales, zeros, group_of)]
        if rng.random() < 0.5:
            parts[0], parts[1] = (part.t().contiguous().t() for part in parts[:2])
        out = torch.empty(rows, outputs, device=DEVICE)
        given = long or rng.random() < 0.5
        found = w4a16(*parts, out) if given else w4a16(*parts)
        story.append([found.cpu(), str(found.dtype)])
    return {"story": story}
