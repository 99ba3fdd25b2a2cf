"""From what the labs' functions return to the outputs a caller sees."""

from collections.abc import Mapping, Sequence

from nanovllm.generation import events
from nanovllm.generation.beam import Hypothesis
from nanovllm.generation.events import Completion
from nanovllm.outputs import CompletionOutput, Logprob, PromptLogprobs
from nanovllm.tokenization.tokenizer import Tokenizer


def completion_output(completion: Completion, tokenizer: Tokenizer) -> CompletionOutput:
    """Return a sample as an output, each token of its log-probabilities with its text."""
    logprobs = None
    if completion.logprobs is not None:
        logprobs = [_position(position, tokenizer) for position in completion.logprobs]
    return CompletionOutput(
        index=completion.index,
        text=completion.text,
        token_ids=list(completion.token_ids),
        cumulative_logprob=completion.cumulative_logprob,
        logprobs=logprobs,
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
    )


def prompt_output(
    scores: Sequence[Mapping[int, events.Logprob] | None], tokenizer: Tokenizer
) -> PromptLogprobs:
    """Return a prompt's log-probabilities, each token with its text."""
    return [None if each is None else _position(each, tokenizer) for each in scores]


def _position(entries: Mapping[int, events.Logprob], tokenizer: Tokenizer) -> dict[int, Logprob]:
    return {
        token: Logprob(entry.logprob, entry.rank, tokenizer.decode([token]))
        for token, entry in entries.items()
    }


def beam_outputs(found: Sequence[Hypothesis], tokenizer: Tokenizer) -> list[CompletionOutput]:
    """Return what a beam search found as outputs, best first."""
    return [
        CompletionOutput(
            index=index,
            text=tokenizer.decode(hypothesis.token_ids, skip_special_tokens=True),
            token_ids=list(hypothesis.token_ids),
            cumulative_logprob=hypothesis.logprob,
            finish_reason=hypothesis.finish_reason,
        )
        for index, hypothesis in enumerate(found)
    ]
