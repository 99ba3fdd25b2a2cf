"""Questions to guess at before lab 09 is written; your own code answers them."""

from grader.student.predict import Question


def bits_of_a_weight() -> float:
    import torch

    from nanovllm.quantization.grids import round_to_nearest
    from nanovllm.quantization.measures import bits_per_weight
    from nanovllm.quantization.scheme import Scheme

    weight = torch.randn(8, 96, generator=torch.Generator().manual_seed(9))
    return bits_per_weight(round_to_nearest(weight, Scheme(bits=4, group_size=32)))


def weights_that_vanish() -> float:
    import torch

    from nanovllm.quantization.grids import round_to_nearest
    from nanovllm.quantization.scheme import Scheme

    weight = torch.linspace(-0.1, 0.1, 64)[None].clone()
    weight[0, 20] = 3.0
    return float((round_to_nearest(weight, Scheme(bits=4, group_size=64)).dequantize() == 0).sum())


def error_left_by_gptq() -> float:
    import torch

    from nanovllm.quantization.gptq import gptq, hessian
    from nanovllm.quantization.grids import fit_grid, round_to_nearest
    from nanovllm.quantization.scheme import Scheme

    noise, scheme = torch.Generator().manual_seed(9), Scheme(bits=3, group_size=64)
    weight = torch.randn(128, 128, generator=noise)
    common = torch.randn(1024, 8, generator=noise) @ torch.randn(8, 128, generator=noise) / 8**0.5
    inputs = 0.75**0.5 * common + 0.25**0.5 * torch.randn(1024, 128, generator=noise)
    found = gptq(weight, hessian(inputs), fit_grid(weight, scheme))
    rounded, corrected = (
        float((inputs @ (method.dequantize() - weight).T).square().sum())
        for method in (round_to_nearest(weight, scheme), found)
    )
    return 100 * corrected / rounded


def codes_beside_an_outlier() -> float:
    import torch

    from nanovllm.quantization.int8_activations import quantize_tokens

    token = torch.cat([torch.linspace(-1, 1, 400), torch.tensor([40.0])])
    codes, _ = quantize_tokens(token[None])
    return float(len(codes[0, :-1].unique()))


def bytes_of_a_token() -> float:
    from nanovllm.model.config import ModelConfig
    from nanovllm.quantization.kv_cache import QuantizedCache

    config = ModelConfig("qwen3", 2048, 256, 4, 8, 4, 32, 768, 1024, qk_norm=True)
    return QuantizedCache.bytes_per_token(config, "int4")


QUESTIONS = [
    Question(
        key="a",
        text="Weights of 4 bits, asymmetric, in groups of 32: how many bits does a weight take, "
        "scales and zero points included?",
        unit="bits",
        tasks=(1,),
        answer=bits_of_a_weight,
    ),
    Question(
        key="b",
        text="In a group of 64 one weight is 3.0, and all others lie within 0.1 of 0. With 4 bits: "
        "how many of the others become 0?",
        unit="weights",
        tasks=(1,),
        answer=weights_that_vanish,
    ),
    Question(
        key="c",
        text="Inputs of a linear are alike: three of four parts come from eight common "
        "directions. With 3 bits, what percentage of rounding's output error does GPTQ leave?",
        unit="percent",
        tasks=(1, 3),
        answer=error_left_by_gptq,
    ),
    Question(
        key="d",
        text="A token's activations lie between -1 and 1, but one is 40. How many different int8 "
        "codes do the others get?",
        unit="codes",
        tasks=(7,),
        answer=codes_beside_an_outlier,
    ),
    Question(
        key="e",
        text="The bundled model has 4 layers, 4 key/value heads and 32 dimensions. In your int4 "
        "cache each head's K or V of a token in a layer may take 4 bytes beside its codes. How "
        "many bytes does a token take in it?",
        unit="bytes",
        tasks=(8,),
        answer=bytes_of_a_token,
    ),
]
