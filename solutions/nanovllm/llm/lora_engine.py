"""An engine whose requests are for a base model, or for adapters of it, in the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.engine import Engine
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request
from nanovllm.cluster.model_specs import ModelSpec, prefix_salt
from nanovllm.generation.errors import RequestError
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.lora import Adapters, read_adapter
from nanovllm.llm.lora_params import adapter_of
from nanovllm.llm.paged_engines import make_store
from nanovllm.llm.read_options import OptionError
from nanovllm.llm.scoring import salt_of, scoring

if TYPE_CHECKING:
    from nanovllm.llm.llm import LLM


class LoraEngine(Engine):
    """Lab 04's engine with Adapters; requests with LoraParams are for one of them."""

    adapters: Adapters

    def add_request(
        self, prompt_token_ids: Sequence[int], params: SamplingParams | None = None, **more: Any
    ) -> int:
        """As the engine's. Raises RequestError for an adapter that is not here."""
        name = getattr(params, "adapter", None)
        if name is not None and name not in self.adapters.names:
            raise RequestError(f"Adapter {name!r} is not served; use {self.adapters.names}.")
        return super().add_request(prompt_token_ids, params, **more)

    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        """As the engine's; every row is computed with the adapter of its request."""
        self.adapters.choose(plan, self.device)
        try:
            return super().execute(plan)
        finally:
            self.adapters.rows = {}


def salt_with_adapter(request: Request) -> str:
    """Only requests for the same adapter share the prefix cache, and of these as always.

    The base model has a salt as well: no `cache_salt` of a client can look like an adapter's.
    """
    name = adapter_of(request)
    spec = ModelSpec("base" if name is None else f"adapter {name}", 0)
    return prefix_salt(spec, salt_of(request))


def lora_engine(llm: LLM, folders: Mapping[str, Path]) -> Engine:
    """An engine for the LLM's model and adapters by name. Raises OptionError, ModelFolderError."""
    llm.level.require("lab05", "--enable-lora")
    if llm.options.speculative_config is not None or llm.options.num_ranks > 1:
        raise OptionError("--enable-lora goes with neither guesses nor ranks; leave them out.")
    adapters = Adapters(llm.model, {n: read_adapter(f, llm.model) for n, f in folders.items()})
    options = llm.options
    store = make_store(llm.model, llm.max_model_len, options, salt_of=salt_with_adapter)
    make: Any = scoring(LoraEngine)
    config = options.config(llm.max_model_len)
    engine = make(llm.model, config, tokenizer=llm.tokenizer, store=store)
    engine.adapters = adapters
    return engine
