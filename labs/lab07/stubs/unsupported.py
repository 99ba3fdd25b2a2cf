"""Fields that clients know and this server does not honour: refused by name, never ignored (given).

A value that asks for what leaving the field out asks for passes. A field that is in no list is
unknown, and ignored, as vLLM does.
"""

from collections.abc import Mapping
from typing import Any

from nanovllm.serving.errors import BadRequestError

NOTHING: Mapping[str, tuple[Any, ...]] = {  # by field: values besides null that ask for nothing
    "best_of": (1,),
    "chat_template": (),
    "ec_transfer_params": ({},),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_reasoning": (True,),
    "kv_transfer_params": ({},),
    "logprob_token_ids": ([],),
    "prompt_embeds": ([],),
    "repetition_detection": (),
    "return_prompt_text": (False,),
    "routed_experts_prompt_start": (0,),
    "stream_interval": (1,),
    "suffix": ("",),
    "thinking_token_budget": (-1,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}


def refuse_unsupported(given: Mapping[str, Any]) -> None:
    """Raise BadRequestError for the first field that asks for what this server does not do.

    >>> refuse_unsupported({"best_of": 1, "functions": None, "best_friend": 5})
    >>> refuse_unsupported({"best_of": 2})
    Traceback (most recent call last):
    nanovllm.serving.errors.BadRequestError: best_of is not supported; leave it out.
    """
    for name in sorted(NOTHING.keys() & given.keys()):
        value = given[name]
        if value is not None and not any(_same(value, each) for each in NOTHING[name]):
            raise BadRequestError(f"{name} is not supported; leave it out.", param=name)


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are the same; true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other
