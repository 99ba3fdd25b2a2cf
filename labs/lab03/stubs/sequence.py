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
from nanovllm.generation.rows import SamplingRow
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


class NoStops:
    """In the place of StopStrings where no stop string was asked for: all text passes."""

    matched = None

    def push(self, piece: str, armed: bool) -> str:
        return piece

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
        self.stops: StopStrings | NoStops = NoStops()
        if params.stop:
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

    def append(self, sampled: Sampled, now: float) -> list[Event]:
        """Add a token, work out its text, end the sequence if it must end, and report.

        Keeps the token in `output_token_ids`, and its log-probabilities, where there are any, in
        `logprobs`. The text: what the detokenizer makes of the token, passed through `stops`.
        Reasons to end, in this order:

        - a token id, if `armed`: one of eos_token_ids unless params.ignore_eos, or one of
          params.stop_token_ids. finish_reason "stop"; stop_reason is the id, but None where
          eos_token_ids has it and params.ignore_eos is off. The token's own text is left out, and
          the detokenizer does not get it. With params.include_stop_str_in_output it is kept, for
          both kinds of id, and not searched for stop strings.
        - a complete stop string, if `armed`: "stop", and stop_reason is the string.
        - no room for a further token: params.max_tokens of output (the prompt is not counted,
          None is no limit), or max_model_len of prompt and output: "length".

        Returns a TokenGenerated with the text that may be shown now, followed by a Finished when
        this token was the last. Unless a stop string ended the sample, the last token's text is
        what waited in `stops`, then the token's own text, then what the detokenizer still holds.
        That last part is not searched for stop strings. `text` is all that was shown.

        >>> params = SamplingParams(max_tokens=1)
        >>> sequence = Sequence([7], params, max_model_len=9, seed=0)
        >>> _, finished = sequence.append(Sampled(4), now=0.0)
        >>> finished.completion.token_ids, finished.completion.finish_reason
        ((4,), 'length')
        """
        raise NotImplementedError("lab03 task 1: Sequence.append")

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
