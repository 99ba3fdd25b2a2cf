"""The requests of OpenAI's interface, as far as this server honours them (given).

Unknown fields are ignored, as vLLM does. What a value must satisfy beyond its type is checked
where it is used, by SamplingParams and the engine.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

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
    """What a stream carries besides the text."""

    include_usage: bool | None = None


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
    user: str | None = None
    priority: Annotated[int, Field(strict=True)] | None = None  # vLLM's: lower first
    deadline: float | None = None  # seconds in which the answer should be complete


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    suffix: str | None = None


class TextPart(BaseModel):
    """A part of a message that is text."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message; other fields of it go to the chat template as they are."""

    model_config = ConfigDict(extra="allow")
    role: str = Field(min_length=1)
    content: str | list[TextPart] | None = None


class ResponseFormat(BaseModel):
    """Only plain text is offered."""

    type: str


class ChatCompletionRequest(SamplingFields):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None


class TokenizeRequest(Body):
    """POST /tokenize: a text, or a conversation."""

    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class DetokenizeRequest(Body):
    """POST /detokenize."""

    tokens: list[int]


class CancelRequest(BaseModel):
    """POST /dashboard/cancel."""

    id: str
