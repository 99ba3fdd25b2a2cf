"""The ways a request can be refused, each with a sentence that says what to change."""

from collections.abc import Iterable, Sequence

from nanovllm.generation.params import SamplingParams


class RequestError(ValueError):
    """A request that can never be answered as it stands."""


class EmptyPromptError(RequestError):
    """A prompt of no tokens: there is nothing to predict from."""


class PromptTooLongError(RequestError):
    """A prompt that leaves no room in the context for even one new token."""


class TokenIdError(RequestError):
    """A token id outside the vocabulary, in the prompt or in the parameters."""


def check_request(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    has_tokenizer: bool,
) -> None:
    """Refuse a request that can never be answered, before anything is computed.

    >>> check_request([], SamplingParams(), vocab_size=9, max_model_len=8, has_tokenizer=False)
    Traceback (most recent call last):
    nanovllm.generation.errors.EmptyPromptError: The prompt has no tokens; give at least one.
    """
    if not prompt_token_ids:
        raise EmptyPromptError("The prompt has no tokens; give at least one.")
    if len(prompt_token_ids) >= max_model_len:
        raise PromptTooLongError(
            f"The prompt has {len(prompt_token_ids)} tokens, but the context holds "
            f"{max_model_len} with at least one of them new; shorten the prompt to "
            f"{max_model_len - 1} tokens or fewer."
        )
    _check_ids("The prompt", prompt_token_ids, vocab_size)
    _check_ids("logit_bias", params.logit_bias or (), vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids or (), vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    for run in params.bad_words_token_ids or ():
        _check_ids("bad_words_token_ids", run, vocab_size)
    if params.stop and not has_tokenizer:
        raise RequestError(
            "Stop strings are looked for in the text, so stop= needs a tokenizer; "
            "pass tokenizer=, or use stop_token_ids."
        )


def _check_ids(where: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise TokenIdError(
                f"{where} names token id {token_id}, but this model's ids run from 0 "
                f"to {vocab_size - 1}."
            )
