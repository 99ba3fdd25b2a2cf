"""Questions of lab 02 to guess at before the code is written."""

from grader.student.predict import Question
from nanovllm.model.config import ModelConfig


def _llama(hidden: int, inner: int, groups: int, vocabulary: int) -> ModelConfig:
    sizes = {"num_layers": 32, "num_heads": 32, "num_kv_heads": groups, "head_dim": 128}
    return ModelConfig(
        "llama",
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        max_position=8192,
        **sizes,
    )


def _cache_of_a_token() -> float:
    from nanovllm.model.accounting import kv_bytes_per_token

    return kv_bytes_per_token(_llama(4096, 14_336, 8, 128_256)) / 1024


def _computed(cached: bool) -> float:
    from nanovllm.model.accounting import tokens_computed

    return tokens_computed(prompt=5, generated=20, cached=cached)


def _intensity_of_a_prompt() -> float:
    from nanovllm.model.accounting import arithmetic_intensity

    return arithmetic_intensity(_llama(4096, 14_336, 8, 128_256), new_tokens=2000)


def _training_over_decoding() -> float:
    from nanovllm.model.accounting import step_flops, training_flops

    llama = _llama(4096, 11_008, 32, 32_000)
    return training_flops(llama, tokens=2048) / step_flops(llama, 1, cached_tokens=2047)


def _largest_weight(scale: float | None) -> float:
    """Mean weight of the best of 64 random keys, D = 64, by the student's attention."""
    import torch

    from nanovllm.model.attention import attention

    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for _ in range(200):
        q = torch.randn(1, 1, 64, generator=generator)
        k = torch.randn(64, 1, 64, generator=generator)
        v = torch.zeros(64, 1, 64)
        v[(k @ q[0, 0]).argmax()] = 1.0
        total += attention(q, k, v, scale=scale)[0, 0, 0].item()
    return total / 200


QUESTIONS = [
    Question(
        key="a",
        text="How much cache does one token of Llama-3-8B take (32 layers, 32 query heads, "
        "8 key/value heads, D = 128, 2 bytes a number)?",
        unit="KiB",
        tasks=(7,),
        answer=_cache_of_a_token,
    ),
    Question(
        key="b",
        text="How many tokens pass the model for 20 new tokens after a prompt of 5, without a "
        "cache?",
        unit="tokens",
        tasks=(7,),
        answer=lambda: _computed(cached=False),
    ),
    Question(
        key="c",
        text="And how many pass it with a cache?",
        unit="tokens",
        tasks=(7,),
        answer=lambda: _computed(cached=True),
    ),
    Question(
        key="d",
        text="In a decode step Llama-3-8B does about one operation for each byte that it moves. "
        "How many does it do while it reads a prompt of 2,000 tokens?",
        unit="operations a byte",
        tasks=(7,),
        answer=_intensity_of_a_prompt,
    ),
    Question(
        key="e",
        text="How many times the operations of a decode step does a training step of Llama-2-7B "
        "over 2,048 tokens need, if the decode step has 2,047 cached tokens?",
        unit="times",
        tasks=(7,),
        answer=_training_over_decoding,
    ),
    Question(
        key="f",
        text="A random query meets 64 random keys, D = 64. Which weight, from 0 to 1, does the "
        "largest score get with the division by sqrt(D)?",
        unit="parts of 1",
        tasks=(3,),
        answer=lambda: _largest_weight(None),
    ),
    Question(
        key="g",
        text="And which weight does it get without the division?",
        unit="parts of 1",
        tasks=(3,),
        answer=lambda: _largest_weight(1.0),
    ),
]
