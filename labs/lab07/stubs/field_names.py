"""Which field of a request an error of the engine is about (given)."""

from collections.abc import Iterator
from contextlib import contextmanager

from nanovllm.generation.errors import RequestError
from nanovllm.generation.params import ParamsError
from nanovllm.serving.errors import BadRequestError
from nanovllm.serving.protocol import ChatCompletionRequest, SamplingFields


@contextmanager
def naming_fields(body: SamplingFields) -> Iterator[None]:
    """For a `with`: a refusal names the field that its sentence begins with.

    A sentence that begins with no field is about the prompt, if the engine says it.
    """
    try:
        yield
    except (ParamsError, RequestError) as error:
        param: str | None = str(error).split(maxsplit=1)[0].rstrip(":,")
        if param not in type(body).model_fields:
            prompt = "messages" if isinstance(body, ChatCompletionRequest) else "prompt"
            param = prompt if isinstance(error, RequestError) else None
        raise BadRequestError(str(error), param=param) from error
