"""Small layers, packed by the makers' own code: `python make.py AUTOGPTQ GPTQMODEL AUTOAWQ`.

The arguments are checkouts of AutoGPTQ (0.8), GPTQModel (7.3.4) and AutoAWQ (0.2.9);
compressed-tensors 0.17.0 is to be installed. Each file holds what the maker stores, under its own
names, and behind `made.` what went in (codes, zeros, scales, group_of) and the outputs of some rows
by the maker's own product.
"""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).parent
N, K = 32, 64


def taken(path: Path, *names: str, **known: object) -> dict:
    """Functions and classes of a file, without the rest of its package."""
    tree = ast.parse(path.read_text("utf-8"))
    found = [n for n in ast.walk(tree) if getattr(n, "name", None) in names]
    space = {"torch": torch, "t": torch, "nn": nn, "np": np, "math": math,
             "transformers": transformers, **known}  # fmt: skip
    source = "from __future__ import annotations\n" + "\n".join(map(ast.unparse, found))
    exec(compile(source, str(path), "exec"), space)
    return space


def layer(seed: int, bits: int, size: int | None, least_zero: int = 0) -> dict[str, torch.Tensor]:
    """A weight that lies on its grid, its codes and what they are multiplied with."""
    draw = torch.Generator().manual_seed(seed)
    shape, last = (N, K // (size or K)), 2**bits
    codes = torch.randint(0, last, (N, K), generator=draw)
    zeros = torch.randint(least_zero, last, shape, generator=draw)
    scales = (0.01 + 0.05 * torch.rand(shape, generator=draw)).half()
    group_of = torch.arange(K) // (size or K)
    weight = (codes - zeros[:, group_of]) * scales.float()[:, group_of]
    rows = torch.randn(3, K, generator=draw)
    return {"codes": codes, "zeros": zeros, "scales": scales, "group_of": group_of,
            "weight": weight, "rows": rows}  # fmt: skip


def mixed(made: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """The same layer with the groups of its columns mixed up, as act-order leaves them."""
    order = torch.randperm(K, generator=torch.Generator().manual_seed(seed))
    group_of = made["group_of"][order]
    weight = (made["codes"] - made["zeros"][:, group_of]) * made["scales"].float()[:, group_of]
    return made | {"group_of": group_of, "weight": weight}


def save(name: str, tensors: dict[str, torch.Tensor], made: dict[str, torch.Tensor]) -> None:
    del made["weight"]
    made |= {key: made[key].to(torch.uint8) for key in ("codes", "zeros", "group_of")}
    tensors |= {f"made.{key}": value for key, value in made.items()}
    save_file({k: v.contiguous() for k, v in tensors.items()}, HERE / f"{name}.safetensors")


def linear_of(made: dict[str, torch.Tensor]) -> nn.Linear:
    linear = nn.Linear(K, N, bias=False)
    linear.weight.data = made["weight"].clone()
    return linear


def autogptq(folder: Path) -> None:
    file = folder / "auto_gptq" / "nn_modules" / "qlinear" / "qlinear_cuda.py"
    kind = taken(file, "QuantLinear", _autogptq_cuda_available=False,
                 autogptq_cuda_256=None, autogptq_cuda_64=None)["QuantLinear"]  # fmt: skip
    for bits, size, order in ((4, 16, False), (8, None, False), (4, 16, True)):
        made = layer(bits, bits, size, least_zero=1)
        if order:
            made = mixed(made, 3)
        stored = kind(bits, size or -1, K, N, bias=False)
        given = made["scales"].float(), made["zeros"].float()
        stored.pack(linear_of(made), *given, made["group_of"].int())
        made["outputs"] = stored(made["rows"])
        tensors = {"qweight": stored.qweight, "qzeros": stored.qzeros,
                   "scales": stored.scales.half(), "g_idx": stored.g_idx.int()}  # fmt: skip
        save(f"autogptq-{bits}{'-act-order' if order else ''}", tensors, made)


def gptqmodel(folder: Path) -> None:
    file = folder / "gptqmodel" / "nn_modules" / "qlinear" / "__init__.py"
    pool = SimpleNamespace(threadpool_limits=lambda limits: torch.no_grad())
    pack = taken(file, "pack_original", THREADPOOLCTL=pool, _ConvNd=nn.Conv2d)["pack_original"]
    made = layer(7, 4, 16)
    stored = nn.Module()
    stored.bits, stored.maxq, stored.planar, stored.pack_factor = 4, 15, False, 8
    stored.pack_dtype_bits, stored.pack_np_math_dtype, stored.pack_np_dtype = 32, np.uint32, np.int32
    pack(stored, linear_of(made), made["scales"].float(), made["zeros"].float(),
         made["group_of"].int())  # fmt: skip
    made["outputs"] = made["rows"] @ made["weight"].T
    names = ("qweight", "qzeros", "scales", "g_idx")
    save("gptqmodel-4-v2", {name: getattr(stored, name) for name in names}, made)


def autoawq(folder: Path) -> None:
    utils = taken(folder / "awq" / "utils" / "packing_utils.py", "unpack_awq", "reverse_awq_order",
                  "dequantize_gemm", AWQ_REVERSE_ORDER=[0, 4, 1, 5, 2, 6, 3, 7])  # fmt: skip
    file = folder / "awq" / "modules" / "linear" / "gemm.py"
    kind = taken(file, "WQLinear_GEMM", get_best_device=lambda: "cpu")["WQLinear_GEMM"]
    made = layer(9, 4, 16)
    stored = kind.from_linear(linear_of(made), 4, 16, scales=made["scales"].T.float(),
                              zeros=made["zeros"].T.float())  # fmt: skip
    weight = utils["dequantize_gemm"](stored.qweight, stored.qzeros, stored.scales.float(), 4, 16)
    made["outputs"] = made["rows"] @ weight
    names = ("qweight", "qzeros", "scales")
    save("autoawq-4", {name: getattr(stored, name) for name in names}, made)


def compressed_tensors() -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    for layout, bits, size in (("pack-quantized", 4, 16), ("pack-quantized", 8, None),
                               ("int-quantized", 8, None)):  # fmt: skip
        made = layer(bits, bits, size)
        symmetric = layout == "int-quantized"
        if symmetric:
            made["zeros"].fill_(128)
            made["weight"] = (made["codes"] - 128) * made["scales"].float()
        weights = {"num_bits": bits, "symmetric": symmetric, "group_size": size,
                   "strategy": "group" if size else "channel"}  # fmt: skip
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        zeros = (made["zeros"] - 2 ** (bits - 1)).to(torch.int8)
        given = {"weight": made["weight"], "weight_scale": made["scales"].float(),
                 "weight_zero_point": zeros}  # fmt: skip
        compressor = BaseCompressor.get_value_from_registry(layout)
        tensors = dict(compressor.compress(given, scheme))
        weight = compressor.decompress(dict(tensors), scheme)["weight"]
        made["outputs"] = made["rows"] @ weight.float().T
        tensors["weight_scale"] = tensors["weight_scale"].half()
        save(f"compressed-tensors-{layout}-{bits}", tensors, made)


if __name__ == "__main__":
    first, second, third = map(Path, sys.argv[1:])
    autogptq(first)
    gptqmodel(second)
    autoawq(third)
    compressed_tensors()
