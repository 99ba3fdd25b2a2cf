"""The messages of a conversation: a role, and text (given)."""

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError


def read_content(content: Any) -> str | None:
    """The text of a message's content; parts of it are joined."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PydanticCustomError("content", "content must be a text or a list of text parts")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise PydanticCustomError(
                "content",
                'part {number} is no {"type": "text", "text": ...}, and only text is supported',
                {"number": number},
            )
    return "".join(part["text"] for part in content)


_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
Content = Annotated[
    Any,
    PlainValidator(read_content),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": _TEXT_PART},
                {"type": "null"},
            ]
        }
    ),
]


class Message(BaseModel):
    """One message; other fields of it go to the chat template as they are."""

    model_config = ConfigDict(extra="allow")
    role: str = Field(min_length=1)
    content: Content = None

    @model_validator(mode="after")
    def has_content(self) -> "Message":
        """Only an assistant may say nothing: then it has called a tool."""
        if self.content is None and self.role != "assistant":
            raise PydanticCustomError("content", "content must be a text or a list of text parts")
        return self
