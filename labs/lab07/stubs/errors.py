"""What a client is told when something is wrong: a status and one clear sentence (given)."""

from typing import Any


class ApiError(Exception):
    """An answer other than 200; `type` is the status' name in the form vLLM sends it."""

    status = 500
    type = "InternalServerError"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = self.status if status is None else status
        self.param = param
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """The JSON that goes with the status.

        >>> BadRequestError("n must be at least 1, got 0.", param="n").body["error"]["code"]
        400
        """
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.status,
            }
        }


class BadRequestError(ApiError):
    """The request can never be answered as it stands."""

    status, type = 400, "BadRequestError"


class UnauthorizedError(ApiError):
    """The API key is missing or wrong."""

    status, type = 401, "AuthenticationError"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"WWW-Authenticate": "Bearer"})


class NotFoundError(ApiError):
    """There is no such model, request or path."""

    status, type = 404, "NotFoundError"


class RateLimitError(ApiError):
    """This key has used up its tokens for now."""

    status, type = 429, "RateLimitError"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_after)})


class OverloadedError(ApiError):
    """The server takes on nothing more for now."""

    status, type = 503, "ServiceUnavailableError"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_after)})


class EngineDeadError(ApiError):
    """The engine's thread has ended; nothing can be computed until the server is started again."""

    status, type = 503, "EngineDeadError"
