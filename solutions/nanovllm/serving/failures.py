"""Every error as one of the few answers that a client understands."""

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from nanovllm.generation.errors import RequestError
from nanovllm.generation.params import ParamsError
from nanovllm.serving.errors import ApiError, BadRequestError, NotFoundError
from nanovllm.tokenization.errors import ChatTemplateError, TokenizerError


def api_error(error: Exception) -> ApiError:
    """The ApiError that a client gets for `error`; itself, if it is one.

    - RequestError, ParamsError, ChatTemplateError, TokenizerError: a BadRequestError with the text
      of the error.
    - RequestValidationError: a BadRequestError; see below.
    - HTTPException: a NotFoundError for status 404, else a BadRequestError with its status; both
      with its detail as the message, and its headers.
    - Anything else: an ApiError of status 500, whose message shows nothing of the error, not even
      its type.

    A RequestValidationError holds one or more `errors()`, each with a place `loc` and a sentence
    `msg`. The answer tells of one of them, by choice: its message holds the sentence and the
    fields of the place, and `param` is the first of these. A field is a text in `loc` after
    "body"; in ("body", "messages", 0, "role") `param` is "messages". A broken JSON has a place
    without fields: `param` is None.

    >>> api_error(ParamsError("n must be at least 1, got 0.")).status
    400
    """
    ### BEGIN SOLUTION
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = [str(part) for part in first["loc"][1:] if isinstance(part, str)]
        where = f"{'.'.join(place)}: " if place else ""
        return BadRequestError(f"{where}{first['msg']}.", param=place[0] if place else None)
    if isinstance(error, RequestError | ParamsError | ChatTemplateError | TokenizerError):
        return BadRequestError(str(error))
    if isinstance(error, HTTPException):
        kind = NotFoundError if error.status_code == 404 else BadRequestError
        return kind(str(error.detail), status=error.status_code, headers=dict(error.headers or {}))
    return ApiError("The server failed; its log says more under this request's id.")
    ### END SOLUTION


def check_model(asked: str | None, served: str) -> None:
    """Refuse a model that is not served; None means the one that is, any text is a name.

    Raises:
        NotFoundError: another name; param is "model", and the message holds the name.

    >>> check_model(None, "tiny")
    """
    ### BEGIN SOLUTION
    if asked is not None and asked != served:
        named = asked.encode("utf-8", "replace").decode()  # half a surrogate goes into no answer
        raise NotFoundError(f"The model `{named}` does not exist.", param="model")
    ### END SOLUTION
