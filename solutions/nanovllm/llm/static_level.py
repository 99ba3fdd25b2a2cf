"""Lab 03's rung: batches that run to their end, and beam search over a rectangle."""

from collections.abc import Sequence
from typing import Any

from nanovllm.generation.beam import BeamSearchParams, Hypothesis, beam_search
from nanovllm.llm.engine_levels import AnyEngine, EventKinds
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.static_engine import StaticEngine
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer


class StaticRung:
    """What labs 01 to 03 can do; a rung above does better what its lab is about."""

    kinds = EventKinds()
    step = "plain"

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None,
        max_model_len: int,
        options: EngineOptions,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_model_len, self.options = max_model_len, options
        self.prepare()

    def prepare(self) -> None:
        """Work out what depends on the options. Raises OptionError for what cannot be."""

    def make_engine(self) -> AnyEngine:
        """An engine of static batches."""
        most = self.options.max_num_seqs
        return StaticEngine(self.model, self.tokenizer, self.max_model_len, most)

    def beam_search(
        self, prompt_token_ids: Sequence[int], params: BeamSearchParams
    ) -> list[Hypothesis]:
        """Lab 03's. Raises RequestError."""
        return beam_search(self.model, prompt_token_ids, params, max_model_len=self.max_model_len)

    def describe(self, engine: Any) -> str:
        """How large its batches may be."""
        return f"the step is {self.step}; batches of up to {self.options.max_num_seqs} samples"
