"""The reference version of the engine; `nanovllm/__init__.py` at the root puts it on the path."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what that file has, for type checkers, which see this one
    from nanovllm.generation.params import SamplingParams as SamplingParams
    from nanovllm.llm import LLM as LLM
    from nanovllm.outputs import RequestOutput as RequestOutput

    _PACKAGE_OF_LAB: dict[str, str]
