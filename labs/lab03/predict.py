"""The predictions of lab 03, answered from the student's own code."""

from grader.student.predict import Question


def rows_at_the_ridge(cached_tokens: int) -> int | None:
    """Decoding rows of Llama-3-8B that an H100 needs to be bound by arithmetic."""
    from nanovllm.generation.roofline import H100, compute_bound_batch
    from nanovllm.model.config import ModelConfig

    llama = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072)
    return compute_bound_batch(llama, H100, cached_tokens)


def peak_of_chunks() -> float:
    """The largest step of 4,096 tokens in chunks of 512, in percent of one pass."""
    from nanovllm.generation.chunked import prefill_cost

    whole, chunks = (prefill_cost(4096, size).peak_score_elements for size in (4096, 512))
    return 100 * chunks / whole


def wasted() -> float:
    """The share of tokens computed for nobody in one static batch, in percent."""
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.rows import argmax_sampler
    from nanovllm.generation.static_batch import generate_static
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model

    model = dummy_model(ModelConfig("llama", 50, 32, 2, 4, 2, 8, 48, 64))
    prompts = [[7] * length for length in (2, 5, 9, 16)]
    params = [
        SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        for count in (20, 5, 40, 10)
    ]
    done = generate_static(model, prompts, params, sampler=argmax_sampler)
    return 100 * done.waste.wasted_share


QUESTIONS = [
    Question(
        key="a",
        text="How many Llama-3-8B requests must decode together on an H100 (989 TFLOP/s, 3.35 "
        "TB/s) before arithmetic is the limit, with nothing in the cache?",
        unit="requests",
        tasks=(6,),
        answer=lambda: rows_at_the_ridge(0),
    ),
    Question(
        key="b",
        text="The same with 256 tokens in the cache of each request?",
        unit="requests",
        tasks=(6,),
        answer=lambda: rows_at_the_ridge(256),
    ),
    Question(
        key="c",
        text="A prompt of 4,096 tokens is read in chunks of 512. How large is the largest step's "
        "table of attention scores, in percent of the table for one pass?",
        unit="%",
        tasks=(4,),
        answer=peak_of_chunks,
    ),
    Question(
        key="d",
        text="Prompts of 2, 5, 9 and 16 tokens that generate 20, 5, 40 and 10 make one static "
        "batch. What percentage of the computed tokens is for nobody?",
        unit="%",
        tasks=(5,),
        answer=wasted,
    ),
]
