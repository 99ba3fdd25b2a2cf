"""One sample of one request: its tokens, its text, and when and why it ends."""

from collections.abc import Sequence as Seq
from typing import Protocol

from nanovllm.generation.events import (
    Completion,
    Event,
    Finished,
    FinishReason,
    Sampled,
    TokenGenerated,
)
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sampling import SamplingRow
from nanovllm.generation.stop import StopStrings


class Detokenizer(Protocol):
    """Turns token ids into text, piece by piece (lab 01's StreamingDetokenizer)."""

    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...


class NoText:
    """The detokenizer of a request without a tokenizer: all text is empty."""

    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


class Sequence:
    """The tokens of one sample and the rules that end it; `append` is the only way to grow it."""

    def __init__(
        self,
        prompt_token_ids: Seq[int],
        params: SamplingParams,
        *,
        max_model_len: int,
        seed: int,
        eos_token_ids: Seq[int] = (),
        detokenizer: Detokenizer | None = None,
        request_id: int = 0,
        index: int = 0,
    ) -> None:
        self.prompt_token_ids = tuple(prompt_token_ids)
        self.output_token_ids: list[int] = []
        self.params = params
        self.max_model_len = max_model_len
        self.seed = seed
        self.eos_token_ids = tuple(eos_token_ids)
        self.detokenizer = detokenizer or NoText()
        self.stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self.request_id = request_id
        self.index = index
        self.text = ""
        self.logprobs: list[dict] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None

    @property
    def armed(self) -> bool:
        """Whether the token appended last may end it by a stop: never one of the first
        min_tokens."""
        return len(self.output_token_ids) > self.params.min_tokens

    @property
    def row(self) -> SamplingRow:
        """What the sampler has to know to draw the next token."""
        return SamplingRow(
            self.params,
            self.prompt_token_ids,
            self.output_token_ids,
            self.seed,
            self.eos_token_ids,
        )

    def ends_by_id(self, token_id: int) -> bool:
        """Whether this token, just appended, ends the sequence: end of sequence, or a stop id.

        An end-of-sequence id counts unless params.ignore_eos; an id of params.stop_token_ids
        always counts. Neither counts while not `armed`.

        >>> params = SamplingParams(stop_token_ids=[5])
        >>> sequence = Sequence([1], params, max_model_len=9, seed=0, eos_token_ids=[2, 3])
        >>> sequence.output_token_ids.append(3)
        >>> sequence.ends_by_id(3), sequence.ends_by_id(5), sequence.ends_by_id(4)
        (True, True, False)
        """
        raise NotImplementedError("lab03 task 1: Sequence.ends_by_id")

    def out_of_room(self) -> bool:
        """Whether no further token is allowed: max_tokens of output, or max_model_len in all.

        >>> params = SamplingParams(max_tokens=3)
        >>> sequence = Sequence([7, 7], params, max_model_len=4, seed=0)
        >>> sequence.output_token_ids.append(1)
        >>> sequence.out_of_room()
        False
        >>> sequence.output_token_ids.append(1)
        >>> sequence.out_of_room()
        True
        """
        raise NotImplementedError("lab03 task 1: Sequence.out_of_room")

    def append(self, sampled: Sampled, now: float) -> list[Event]:
        """Add a token, work out its text, end the sequence if it must end, and report.

        Returns a TokenGenerated, followed by a Finished when this token was the last. Reasons in
        order: a token id that ends it ("stop"; its own text is left out, unless
        include_stop_str_in_output; stop_reason is None for an end-of-sequence id that is not
        ignored, also where it is one of stop_token_ids), a complete stop string ("stop"), no
        room ("length"). The last event of a sample carries whatever text was held back.

        >>> params = SamplingParams(max_tokens=1)
        >>> sequence = Sequence([7], params, max_model_len=9, seed=0)
        >>> _, finished = sequence.append(Sampled(4), now=0.0)
        >>> finished.completion.token_ids, finished.completion.finish_reason
        ((4,), 'length')
        """
        raise NotImplementedError("lab03 task 1: Sequence.append")

    def _events(self, sampled: Sampled, text: str, now: float) -> list[Event]:
        token_id, logprobs = sampled.token_id, sampled.logprobs
        events: list[Event] = [
            TokenGenerated(self.request_id, self.index, token_id, text, now, logprobs)
        ]
        if self.finished:
            events.append(Finished(self.request_id, self.index, self.completion(), now))
        return events

    def completion(self) -> Completion:
        """The finished sample."""
        assert self.finish_reason is not None, "the sequence has not ended"
        chosen = [
            logprobs[token].logprob
            for token, logprobs in zip(self.output_token_ids, self.logprobs, strict=False)
        ]
        asked = self.params.logprobs is not None
        return Completion(
            index=self.index,
            token_ids=tuple(self.output_token_ids),
            text=self.text,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=tuple(self.logprobs) if asked else None,
            cumulative_logprob=sum(chosen) if asked else None,
        )
