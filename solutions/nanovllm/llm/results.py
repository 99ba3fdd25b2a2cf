"""From what the labs' functions return to the outputs a caller sees."""

from collections.abc import Sequence

from nanovllm.generation.beam import Hypothesis
from nanovllm.generation.events import Completion
from nanovllm.outputs import CompletionOutput, Logprob
from nanovllm.tokenization.tokenizer import Tokenizer


def completion_output(completion: Completion, tokenizer: Tokenizer) -> CompletionOutput:
    """Return a sample as an output, each token of its log-probabilities with its text."""
    logprobs = None
    if completion.logprobs is not None:
        logprobs = [
            {
                token: Logprob(entry.logprob, entry.rank, tokenizer.decode([token]))
                for token, entry in position.items()
            }
            for position in completion.logprobs
        ]
    return CompletionOutput(
        index=completion.index,
        text=completion.text,
        token_ids=list(completion.token_ids),
        cumulative_logprob=completion.cumulative_logprob,
        logprobs=logprobs,
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
    )


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
