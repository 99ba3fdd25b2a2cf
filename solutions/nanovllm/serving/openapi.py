"""What the OpenAPI document says beyond what FastAPI finds by itself (given)."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}
_SAYS = {
    400: "The request cannot be answered as it stands.",
    401: "The API key is missing or unknown.",
    404: "There is no such model or request.",
    405: "The path takes another method.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "The key has used up its tokens for now.",
    503: "The server is full, is shutting down, or its engine has died.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": says, "content": {"application/json": {"schema": _ERROR}}}
    for status, says in _SAYS.items()
}


def document(app: FastAPI, title: str, version: str) -> None:
    """Make `app` describe itself without the 422 that it never answers."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=title, version=version, routes=app.routes)
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                schema.get("components", {}).get("schemas", {}).pop(name, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
