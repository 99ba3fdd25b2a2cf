"""The reference version of the engine; `nanovllm/__init__.py` at the root puts it on the path."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what that file has, for type checkers, which see this one
    from pathlib import Path

    from nanovllm.generation.params import SamplingParams as SamplingParams
    from nanovllm.generation.structured import StructuredOutputsParams as StructuredOutputsParams
    from nanovllm.llm import LLM as LLM
    from nanovllm.llm.async_llm import AsyncLLM as AsyncLLM
    from nanovllm.outputs import RequestOutput as RequestOutput

    __version__: str
    _PACKAGE_OF_LAB: dict[str, str]
    _MINE: Path
    _REFERENCE: Path
    _CODE: str
