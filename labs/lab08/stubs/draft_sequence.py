"""The draft model's own copy of a sequence: the target's tokens, with guesses behind (given)."""

from __future__ import annotations

from dataclasses import replace

from nanovllm.batching.request import Request
from nanovllm.generation.keys import sample_seed
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.rows import SamplingRow

SALT = 1 << 32  # of the noise of drafting and judging: no sample of a request has this index
GREEDY = SamplingParams(temperature=0)


class DraftSequence:
    """What the draft's engine, store and sampler need to know of a request.

    It begins without output: the caller appends the target's tokens, and guesses behind them.
    sampled: guesses are drawn by the target's parameters, else greedily. salt: with noise of
    their own, else with the target's at each place.
    """

    def __init__(self, target: Request, sampled: bool, salt: bool) -> None:
        sequence = target.sequence
        self.request_id, self.index = sequence.request_id, sequence.index
        self.prompt_token_ids = sequence.prompt_token_ids
        self.output_token_ids: list[int] = []
        params = sequence.params if sampled else GREEDY
        salt_of_prompt = sequence.params.cache_salt
        if salt_of_prompt or params.prompt_logprobs is not None:
            params = replace(params, cache_salt=salt_of_prompt, prompt_logprobs=None)
        if salt and params.has_mask:  # the judge must know what a guess was drawn from
            params = replace(params, allowed_token_ids=None, bad_words_token_ids=None, grammar=None)
        self.params = params
        self.seed = sample_seed(sequence.seed, SALT) if salt else sequence.seed
        self.eos_token_ids = sequence.eos_token_ids

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def row(self) -> SamplingRow:
        return SamplingRow(
            self.params, self.prompt_token_ids, self.output_token_ids, self.seed, self.eos_token_ids
        )
