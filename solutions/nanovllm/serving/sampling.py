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
    ### BEGIN SOLUTION
    given: dict[str, Any] = {name: getattr(request, name) for name in PLAIN}
    given["max_tokens"] = _max_tokens(request, num_prompt_tokens, max_model_len)
    if isinstance(request, ChatCompletionRequest):
        if request.top_logprobs is not None and not request.logprobs:
            raise BadRequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        given["logprobs"] = (request.top_logprobs or 0) if request.logprobs else None
    elif isinstance(request, CompletionRequest):
        given["logprobs"] = request.logprobs
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})
    ### END SOLUTION


def _max_tokens(request: SamplingFields, num_prompt_tokens: int, max_model_len: int) -> int:
    """The most tokens of an answer; never cut to fit in silence.

    A chat's `max_completion_tokens` wins over `max_tokens`. Where neither is given: 16 for a
    completion, or what the context has left if that is less; all it has left for a chat.

    Raises:
        BadRequestError: the prompt leaves no room for a token, or what was asked for is more
            than the context has left; param is the field that asked for it (max_tokens or
            max_completion_tokens), else the prompt's: prompt of a completion, messages of a chat.
    """
    ### BEGIN SOLUTION
    room = max_model_len - num_prompt_tokens
    is_chat = isinstance(request, ChatCompletionRequest)
    asked, field = request.max_tokens, "max_tokens"
    if is_chat and request.max_completion_tokens is not None:
        asked, field = request.max_completion_tokens, "max_completion_tokens"
    needed = 1 if asked is None else asked
    if needed > room:
        raise BadRequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {num_prompt_tokens + needed} tokens ({num_prompt_tokens} in the prompt, "
            f"{needed} in the answer). Please reduce the length of the prompt or the answer.",
            param=field if asked is not None else "messages" if is_chat else "prompt",
        )
    if asked is not None:
        return asked
    return room if is_chat else min(DEFAULT_MAX_TOKENS, room)
    ### END SOLUTION
