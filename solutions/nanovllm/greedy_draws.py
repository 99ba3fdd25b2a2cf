"""Which draws an engine may make itself, where lab 03's sampler would say the same."""

from nanovllm.generation.sequence import Sequence


def wants_token_alone(sequence: Sequence) -> bool:
    """Whether its next token is drawn from the raw logits, and nothing more is asked.

    So the draw depends on no earlier token: it may be made before they are known.
    """
    params = sequence.params
    return (
        params.logprobs is None
        and not params.logit_bias
        and not params.has_penalties
        and len(sequence.output_token_ids) >= params.min_tokens
    )


def wants_argmax(sequence: Sequence) -> bool:
    """Whether its next token is the argmax of the raw logits, and nothing more is asked.

    >>> from nanovllm.generation.params import SamplingParams
    >>> wants_argmax(Sequence([1], SamplingParams(temperature=0), max_model_len=9, seed=0))
    True
    >>> wants_argmax(Sequence([1], SamplingParams(logprobs=1), max_model_len=9, seed=0))
    False
    """
    return sequence.params.greedy and wants_token_alone(sequence)
