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
    sentence; for a RequestValidationError the first of its errors: of its place without `body`,
    only the parts that are fields (`is_field`), as in `messages.role: Field required.`, or the
    sentence alone where none is; param is the first of these parts, or None. An HTTPException
    keeps its detail, status and headers; its type is NotFoundError for 404, else BadRequestError.
    Anything else is an ApiError of status 500 that shows nothing of it, not even its type.
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
