"""The engine's public face, with vLLM's names: `LLM(model).generate(prompts, params)`."""

from nanovllm.llm.llm import LLM
from nanovllm.llm.read_options import OptionError

__all__ = ["LLM", "OptionError"]
