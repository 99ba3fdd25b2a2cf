"""Which draws an engine may make itself, where lab 03's sampler would say the same."""

from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sequence import Sequence


def wants_token_alone(sequence: Sequence, position: int | None = None) -> bool:
    """Whether its next token is drawn from the raw logits, and nothing more is asked.

    So the draw depends on no earlier token: it may be made before they are known. position: where
    that token will stand; behind the newest one if None.
    """
    params, so_far = sequence.params, len(sequence.output_token_ids)
    if position is not None:
        so_far = position - len(sequence.prompt_token_ids)
    return _raw(params) and so_far >= params.min_tokens


def _raw(params: SamplingParams) -> bool:
    """Whether logits are taken as they are, and nothing is told of them. Asked at each token, and
    always the same: so the answer is kept with the params, which nobody changes."""
    kept = vars(params)
    if "_raw" not in kept:
        kept["_raw"] = (
            params.logprobs is None
            and not params.logit_bias
            and not params.has_penalties
            and not params.has_mask
            and params.prompt_logprobs is None
        )
    return kept["_raw"]


def wants_argmax(sequence: Sequence) -> bool:
    """Whether its next token is the argmax of the raw logits, and nothing more is asked.

    >>> from nanovllm.generation.params import SamplingParams
    >>> wants_argmax(Sequence([1], SamplingParams(temperature=0), max_model_len=9, seed=0))
    True
    >>> wants_argmax(Sequence([1], SamplingParams(logprobs=1), max_model_len=9, seed=0))
    False
    """
    return sequence.params.greedy and wants_token_alone(sequence)
