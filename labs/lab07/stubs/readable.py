"""What pydantic says of a request, as one sentence about one place in it (given)."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError

_NO_OBJECT = "The body must be a JSON object, sent with the header Content-Type: application/json"


def readable(error: RequestValidationError) -> RequestValidationError:
    """The same refusal with one error; its `loc` is a place in the body, all of it text.

    pydantic also names what it tried: of "text or list of texts" both, as if they were fields. Of
    several errors the deepest is told; of several at one place, all sentences.
    """
    found = [(_place(each, error.body), _says(each)) for each in error.errors()]
    place = max((place for place, _ in found), key=len)
    says = dict.fromkeys(says for other, says in found if other == place)
    return RequestValidationError([{"loc": ("body", *place), "msg": "; or ".join(says)}])


def _place(error: Mapping[str, Any], body: Any) -> tuple[str, ...]:
    """The part of `loc` that leads somewhere in the body; a field that is missing ends it."""
    place, value = [], body
    for part in error["loc"][1:]:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, Sequence) and isinstance(part, int) and not isinstance(value, str):
            value = value[part] if part < len(value) else None
        elif not (error["type"] == "missing" and part == error["loc"][-1]):
            continue
        place.append(str(part))
    return tuple(place) if isinstance(body, dict) else ()


def _says(error: Mapping[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return f"The body is no JSON: {error['ctx']['error']} at byte {error['loc'][-1]}"
    if error["loc"] == ("body",) and error["type"] in ("missing", "model_attributes_type"):
        return _NO_OBJECT
    says: str = error["msg"]
    return says[:1].lower() + says[1:]
