"""The requests of OpenAI's interface, as far as this server honours them (given).

Unknown fields are ignored, as vLLM does; those that are known and not supported stand in
unsupported.py. What a value must satisfy beyond its type is checked where it is used, by
SamplingParams and the engine.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from nanovllm.serving.errors import BadRequestError
from nanovllm.serving.messages import Message
from nanovllm.serving.unsupported import refuse_unsupported

MAX_STOPS = 64
MAX_LOGPROBS = 20
INT64 = 2**63

Seed = Annotated[int, Field(ge=-INT64, lt=INT64)]
Stop = Annotated[str, Field(max_length=1000)]
Prompt = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ],
            "description": "A text, its token ids, or a list of either.",
        }
    ),
]


class Body(BaseModel):
    """Any request: unknown fields are ignored, numbers are finite."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    model: str | None = None


class StreamOptions(BaseModel):
    """What a stream carries besides the text; the second needs the first, as in vLLM."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(BaseModel):
    """What `response_format` calls a schema; it is always followed, `strict` or not."""

    name: str
    description: str | None = None
    json_schema: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's way to say what the answer's text must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(BaseModel):
    """vLLM's way: one of the first five; what it has besides, and this server has not, is refused.

    StructuredOutputsParams says what each means.
    """

    model_config = ConfigDict(extra="forbid")

    json_: Annotated[Any, WithJsonSchema({"description": "A JSON schema."})] = Field(
        None, alias="json"
    )
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None


class SamplingFields(Body):
    """The fields that go to SamplingParams by the same name; null means the default."""

    n: int | None = Field(None, ge=1, le=128)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: list[int] | None = Field(None, max_length=1024)
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    request_id: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    truncation_side: Literal["left", "right"] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = Field(None, max_length=1024)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    priority: Annotated[int, Field(strict=True)] | None = None  # vLLM's: lower first
    deadline: float | None = None  # seconds in which the answer should be complete
    # Tokens of the answer that another server has generated; [] for none yet. The answer holds
    # what comes behind them, and each of its choices says its `token_ids`.
    output_token_ids: list[int] | None = None

    @model_validator(mode="before")
    @classmethod
    def refuse(cls, given: Any) -> Any:
        """Refuse by name what is known and not done."""
        if isinstance(given, dict):
            refuse_unsupported(given)
            if given.get("stream_options") and not given.get("stream"):
                raise BadRequestError(
                    "stream_options only goes with stream: true.", param="stream_options"
                )
            if given.get("prompt_logprobs") is not None and given.get("stream"):
                raise BadRequestError(
                    "prompt_logprobs does not go with stream: true.", param="prompt_logprobs"
                )
        return given


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool | None = None


class Conversation(Body):
    """How a conversation becomes a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    documents: list[dict[str, str]] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def begins_or_goes_on(self) -> "Conversation":
        """A turn is begun or goes on, not both; beginning is the default, so it is declined."""
        if self.continue_final_message and self.add_generation_prompt is not False:
            raise BadRequestError(
                "continue_final_message goes on with the last message, so it needs "
                "add_generation_prompt: false.",
                param="continue_final_message",
            )
        return self


class ChatCompletionRequest(SamplingFields, Conversation):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None


class TokenizeRequest(Conversation):
    """POST /tokenize: a text, or a conversation."""

    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    return_token_strs: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def refuse(cls, given: Any) -> Any:
        """Refuse by name what is known and not done."""
        if isinstance(given, dict):
            refuse_unsupported(given)
        return given


class DetokenizeRequest(Body):
    """POST /detokenize."""

    tokens: list[int]


class CompactRequest(Body):
    """POST /compact; a field that means nothing here would be a size that nobody hears of."""

    model_config = ConfigDict(extra="forbid")
    num_blocks: int | None = None


class CancelRequest(BaseModel):
    """POST /dashboard/cancel."""

    id: str
