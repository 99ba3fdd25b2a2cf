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
    ### BEGIN SOLUTION
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = [str(part) for part in first["loc"][1:] if is_field(part)]
        where = f"{'.'.join(place)}: " if place else ""
        return BadRequestError(f"{where}{first['msg']}.", param=place[0] if place else None)
    if isinstance(error, RequestError | ParamsError | ChatTemplateError | TokenizerError):
        return BadRequestError(str(error))
    if isinstance(error, HTTPException):
        kind = NotFoundError if error.status_code == 404 else ApiError
        found = kind(str(error.detail), status=error.status_code, headers=dict(error.headers or {}))
        found.type = kind.type if kind is NotFoundError else "BadRequestError"
        return found
    return ApiError("The server failed; its log says more under this request's id.")
    ### END SOLUTION


def is_field(part: object) -> bool:
    """Whether a part of an error's place names a field; of a broken JSON it is a position."""
    return isinstance(part, str)


def check_model(asked: str | None, served: str) -> None:
    """Refuse a model that is not served; no name means the one that is.

    Raises:
        NotFoundError: param is "model".
    """
    ### BEGIN SOLUTION
    if asked is not None and asked != served:
        raise NotFoundError(f"The model `{asked}` does not exist.", param="model")
    ### END SOLUTION
