"""What a client wants the answer's text to be, as the engine's parameters (given)."""

import asyncio
from dataclasses import replace
from typing import Any

from nanovllm.generation.errors import RequestError
from nanovllm.generation.params import ParamsError, SamplingParams
from nanovllm.generation.request import prepare
from nanovllm.generation.structured import KINDS, StructuredOutputsParams
from nanovllm.serving.errors import BadRequestError
from nanovllm.serving.protocol import SamplingFields


async def with_structure(
    params: SamplingParams, body: SamplingFields, engine: Any
) -> SamplingParams:
    """The parameters with the grammar that the body asks for, compiled in another thread.

    Raises BadRequestError, whose param is the field that asks.
    """
    field, given = asked_for(body)
    if not field:
        return params
    model = getattr(engine, "model", None)
    if model is None:
        raise BadRequestError(f"{field} is not followed by this engine; leave it out.", param=field)
    try:
        wanted = replace(params, structured_outputs=StructuredOutputsParams(**given))
        return await asyncio.to_thread(prepare, wanted, model, engine.tokenizer)
    except (ParamsError, RequestError) as error:
        says = str(error).replace("structured_outputs", field, 1)
        raise BadRequestError(says, param=field) from error


def asked_for(body: SamplingFields) -> tuple[str, dict[str, Any]]:
    """The field that asks, "" if none does; and StructuredOutputsParams' arguments.

    structured_outputs may say how white space is to be, and response_format the rest: as in vLLM.

    >>> asked_for(SamplingFields(response_format={"type": "json_object"}))
    ('response_format', {'json_object': True})
    """
    given: dict[str, Any] = {}
    if body.structured_outputs is not None:
        given = body.structured_outputs.model_dump(exclude_none=True, by_alias=True)
    field = "structured_outputs" if given else ""
    form = body.response_format
    if form is None or form.type == "text":
        return field, given
    if given.keys() & set(KINDS):
        raise BadRequestError(
            "response_format and structured_outputs both say what the text must be; leave one out.",
            param="response_format",
        )
    if form.type == "json_object":
        return "response_format", given | {"json_object": True}
    if form.json_schema is None or form.json_schema.json_schema is None:
        raise BadRequestError(
            "response_format.json_schema.schema is missing; give the schema.",
            param="response_format",
        )
    return "response_format", given | {"json": form.json_schema.json_schema}
