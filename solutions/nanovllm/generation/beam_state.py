"""The open beams of a search and the hypotheses that have ended: the class `BeamSearch`.

The handout's task 3 gives its interface; what it keeps, and how, is up to you.
"""

### BEGIN SOLUTION
from collections.abc import Sequence

import torch

from nanovllm.generation.beam_params import Beam, BeamSearchParams, Hypothesis


class BeamSearch:
    """What is open and what has ended, as transformers' GenerationMixin._beam_search keeps it."""

    def __init__(self, params: BeamSearchParams, eos_token_ids: Sequence[int]) -> None:
        self.params = params
        self.eos_token_ids = set() if params.ignore_eos else set(eos_token_ids)
        self.beams = [Beam((), 0.0)]  # all are equal at first, so one stands for all
        self.finished: list[Hypothesis] = []  # best first, at most beam_width
        self.over = False

    def update(self, logprobs: torch.Tensor) -> list[int]:
        """Take every open beam's next-token log-probabilities; return the new beams' parents."""
        width = self.params.beam_width
        length = len(self.beams[0].token_ids) + 1
        opened: list[Beam] = []
        parents: list[int] = []
        for rank, (parent, token_id, logprob) in enumerate(self._best_first(logprobs)):
            token_ids = (*self.beams[parent].token_ids, token_id)
            if token_id in self.eos_token_ids or length == self.params.max_tokens:
                if rank < width:
                    self.finished.append(self._hypothesis(token_ids, logprob))
            elif len(opened) < width:
                opened.append(Beam(token_ids, logprob))
                parents.append(parent)
        self.finished = sorted(self.finished, key=lambda h: h.score, reverse=True)[:width]
        self.beams = opened
        self.over = not opened or self._is_decided(length)
        return parents

    def _best_first(self, logprobs: torch.Tensor) -> list[tuple[int, int, float]]:
        """Parent, token and sum of so many that beam_width open ones must be among them."""
        sums = torch.tensor([beam.logprob for beam in self.beams], device=logprobs.device)
        totals = (sums[:, None] + logprobs).flatten()  # [W * V]
        count = self.params.beam_width * (1 + max(1, len(self.eos_token_ids)))
        values, places = totals.topk(min(count, len(totals)))
        return [  # pyright: ignore[reportReturnType]  # divmod of what `tolist` gives has no length
            (*divmod(place, logprobs.shape[1]), value)
            for value, place in zip(values.tolist(), places.tolist(), strict=True)
        ]

    def _score(self, logprob: float, length: int) -> float:
        return logprob / length**self.params.length_penalty

    def _hypothesis(self, token_ids: tuple[int, ...], logprob: float) -> Hypothesis:
        reason = "stop" if token_ids[-1] in self.eos_token_ids else "length"
        return Hypothesis(token_ids, logprob, self._score(logprob, len(token_ids)), reason)

    def _is_decided(self, length: int) -> bool:
        """Whether no open beam can improve what has ended, by the rule of early_stopping."""
        params = self.params
        if len(self.finished) < params.beam_width:
            return False
        if params.early_stopping is True:
            return True
        hopeful = params.early_stopping == "never" and params.length_penalty > 0
        possible = self._score(self.beams[0].logprob, params.max_tokens if hopeful else length)
        return possible <= self.finished[-1].score


### END SOLUTION
