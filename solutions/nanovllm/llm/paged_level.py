"""Lab 05's rung: K and V in blocks, shared by requests that begin alike."""

from collections.abc import Sequence
from typing import Any

from nanovllm.batching.engine import Engine
from nanovllm.generation.beam import BeamSearchParams, Hypothesis
from nanovllm.generation.request import weight_of
from nanovllm.llm.continuous_level import ContinuousRung
from nanovllm.llm.guessing import speculation
from nanovllm.llm.kv_codes import beam_cache
from nanovllm.llm.paged_engines import bytes_per_token, make_engine, step_kind
from nanovllm.paging.beam import paged_beam_search


class PagedRung(ContinuousRung):
    """Lab 04's rung on blocks; compiled, or on a GPU by CUDA graphs, where all of that is here."""

    def prepare(self) -> None:
        """Also the size of the cache, the kind of step, and who guesses. Raises OptionError."""
        super().prepare()
        self.step = step_kind(self.model, self.options)
        per_token = bytes_per_token(self.model, self.options, self.step)
        self.options.num_blocks(self.max_model_len, per_token, weight_of(self.model).device)
        self.options.num_host_blocks(per_token)
        self.guessing = speculation(self.model, self.max_model_len, self.options, self.tokenizer)

    def make_engine(self) -> Engine:
        """An engine on blocks."""
        parts = self.model, self.tokenizer, self.max_model_len
        return make_engine(*parts, self.options, self.guessing)

    def beam_search(
        self, prompt_token_ids: Sequence[int], params: BeamSearchParams
    ) -> list[Hypothesis]:
        """Lab 03's, with beams that share blocks. Raises RequestError."""
        return paged_beam_search(
            self.model,
            prompt_token_ids,
            params,
            max_model_len=self.max_model_len,
            block_size=self.options.block_size,
            make_beam_cache=beam_cache(self.options),
        )

    def describe(self, engine: Engine) -> str:
        """What kind of step it is, and why; the blocks, and who shares them."""
        store: Any = engine.store
        shared = "no prefix cache" if store.prefix_stats is None else "prefixes are cached"
        size = f"{store.num_blocks} blocks of {store.block_size} tokens"
        if self.options.kv_codes:
            size += f" in {self.options.kv_cache_dtype}"
        if self.options.swap_space:
            shared += f", up to {self.options.swap_space:g} GiB are swapped where that pays"
        return f"the step is {self.step}; {size}, {shared}"
