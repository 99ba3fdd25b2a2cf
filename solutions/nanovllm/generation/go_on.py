"""A sample that another engine has begun: its tokens are taken over (given)."""

from collections.abc import Sequence as Seq

from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Sampled
from nanovllm.generation.sequence import Sequence


def go_on(sequence: Sequence, output_token_ids: Seq[int], vocab_size: int) -> None:
    """Append tokens that were generated elsewhere to a new sequence.

    Raises:
        RequestError: an id that is no token, tokens that end the sample already or break its
            grammar, several samples, or log-probabilities, which nobody has for these tokens.
    """
    if not output_token_ids:
        return
    params = sequence.params
    if params.n != 1 or (params.logprobs, params.prompt_logprobs) != (None, None):
        raise RequestError(
            "output_token_ids go on with one sample without log-probabilities; leave n, logprobs "
            "and prompt_logprobs out."
        )
    grammar = sequence.params.grammar
    if grammar is not None and grammar.allowed(output_token_ids) is None:
        raise RequestError("output_token_ids break what structured_outputs asks for.")
    for place, token in enumerate(output_token_ids, start=1):
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"output_token_ids has {token}, but ids run from 0 to {vocab_size - 1}."
            )
        sequence.append(Sampled(token), 0.0)
        if sequence.finished:
            raise RequestError(
                f"output_token_ids end the answer with token {place} of {len(output_token_ids)}: "
                "there is nothing to go on with."
            )
