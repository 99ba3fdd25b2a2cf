"""From the fields of a request to the engine's SamplingParams."""

from typing import Any

from nanovllm.generation.params import SamplingParams
from nanovllm.serving.errors import BadRequestError
from nanovllm.serving.protocol import ChatCompletionRequest, SamplingFields

PLAIN = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "ignore_eos",
    "min_tokens", "skip_special_tokens", "include_stop_str_in_output", "allowed_token_ids",
    "bad_words", "prompt_logprobs", "cache_salt",
)  # fmt: skip  # fields with the same name and meaning in a request and in SamplingParams
DEFAULT_MAX_TOKENS = 16  # of a completion


def sampling_params(
    request: SamplingFields, num_prompt_tokens: int, max_model_len: int
) -> SamplingParams:
    """What a request asks of the sampler, every default filled in.

    num_prompt_tokens: of its longest prompt. A field that is null or missing gets SamplingParams'
    default; 0 is a value. The number of log-probabilities is `logprobs` of a completion, and
    `top_logprobs` (0 if not given) of a chat whose `logprobs` is true.

    The context is for prompt and answer, and an answer is never cut to fit in silence. A client
    asks for a length with `max_tokens`; a chat also with `max_completion_tokens`, which wins. Where
    nothing is asked for, a completion gets 16 tokens, or what the context has left if that is
    less; a chat gets all that is left.

    Raises:
        BadRequestError: the prompt leaves no room for one token, or more is asked for than the
            context has left. If the client asked for a length, param is the field that counts,
            max_tokens or max_completion_tokens, also where the prompt alone is too long. If not,
            it is prompt of a completion, messages of a chat.
            The message holds four numbers: the context, all that was asked for (prompt and
            answer, of which at least one token), the prompt's part and the answer's. Or: a
            `top_logprobs` above 0 comes without logprobs; param is top_logprobs.
        ParamsError: a value that SamplingParams refuses.

    >>> from nanovllm.serving.protocol import CompletionRequest
    >>> request = CompletionRequest(prompt="Hi", temperature=0.5, stop=None)
    >>> params = sampling_params(request, num_prompt_tokens=4, max_model_len=64)
    >>> params.max_tokens, params.temperature, params.stop
    (16, 0.5, ())
    """
    raise NotImplementedError("lab07 task 2: sampling_params")
