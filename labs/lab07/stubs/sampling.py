"""From the fields of a request to the engine's SamplingParams."""

from typing import Any

from nanovllm.generation.params import SamplingParams
from nanovllm.serving.errors import BadRequestError
from nanovllm.serving.protocol import ChatCompletionRequest, CompletionRequest, SamplingFields

PLAIN = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "ignore_eos",
    "min_tokens", "skip_special_tokens", "include_stop_str_in_output",
)  # fmt: skip
DEFAULT_MAX_TOKENS = 16  # of a completion; a chat goes on to the end of the context


def sampling_params(
    request: SamplingFields, num_prompt_tokens: int, max_model_len: int
) -> SamplingParams:
    """What a request asks of the sampler, every default filled in.

    num_prompt_tokens: of its longest prompt. A field that is null or missing gets SamplingParams'
    default; 0 is a value. The tokens to report log-probabilities of are `logprobs` of a completion,
    and `top_logprobs` (0 if not given) of a chat whose `logprobs` is true.

    Raises:
        BadRequestError: prompt and answer do not fit into the context, or top_logprobs comes
            without logprobs.
        ParamsError: a value that SamplingParams refuses.

    >>> request = CompletionRequest(prompt="Hi", temperature=0.5, stop=None)
    >>> params = sampling_params(request, num_prompt_tokens=4, max_model_len=64)
    >>> params.max_tokens, params.temperature, params.stop
    (16, 0.5, ())
    """
    raise NotImplementedError("lab07 task 2: sampling_params")


def _max_tokens(request: SamplingFields, num_prompt_tokens: int, max_model_len: int) -> int:
    """The most tokens of an answer; never cut to fit in silence.

    A chat's `max_completion_tokens` wins over `max_tokens`. Where neither is given: 16 for a
    completion, or what the context has left if that is less; all it has left for a chat.

    Raises:
        BadRequestError: the prompt leaves no room for a token, or what was asked for is more
            than the context has left; param is the field that asked for it (max_tokens or
            max_completion_tokens), else the prompt's: prompt of a completion, messages of a chat.
    """
    raise NotImplementedError("lab07 task 2: _max_tokens")
