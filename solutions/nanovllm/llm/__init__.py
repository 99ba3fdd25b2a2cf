"""The engine's public face, with vLLM's names: `LLM(model).generate(prompts, params)`."""

from nanovllm.llm.engine import LLM
from nanovllm.llm.options import OptionError

__all__ = ["LLM", "OptionError"]
