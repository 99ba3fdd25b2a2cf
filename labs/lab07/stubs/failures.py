"""Every error as one of the few answers that a client understands."""

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from nanovllm.generation.errors import RequestError
from nanovllm.generation.params import ParamsError
from nanovllm.serving.errors import ApiError, BadRequestError, NotFoundError
from nanovllm.tokenization.errors import ChatTemplateError, TokenizerError


def api_error(error: Exception) -> ApiError:
    """The ApiError that a client gets for `error`.

    An ApiError stands for itself. What the client can mend (RequestValidationError, RequestError,
    ParamsError, ChatTemplateError, TokenizerError) is a BadRequestError with the error's own
    sentence; for a RequestValidationError with the first of its errors: the message names the
    field (`body.` left out, parts joined by dots) and param is the field's first part, or None
    where no field is to blame (`is_field`). An HTTPException keeps its status and headers, 404 as
    NotFoundError. Anything else is an ApiError of status 500, which keeps the text to itself.
    """
    raise NotImplementedError("lab07 task 2: api_error")


def is_field(part: object) -> bool:
    """Whether a part of an error's place names a field; of a broken JSON it is a position."""
    return isinstance(part, str)


def check_model(asked: str | None, served: str) -> None:
    """Refuse a model that is not served; no name means the one that is.

    Raises:
        NotFoundError: param is "model".
    """
    raise NotImplementedError("lab07 task 2: check_model")
