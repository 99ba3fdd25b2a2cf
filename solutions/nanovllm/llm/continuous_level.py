"""Lab 04's rung: requests join and leave at every step, each with a slot of its own."""

from nanovllm.batching.engine import Engine
from nanovllm.batching.events import Aborted, Failed, Stepped
from nanovllm.batching.slot_store import SlotStore
from nanovllm.generation.request import weight_of
from nanovllm.llm.engine_levels import EventKinds
from nanovllm.llm.kv_codes import token_bytes
from nanovllm.llm.static_level import StaticRung


class ContinuousRung(StaticRung):
    """Lab 03's rung with lab 04's engine, on slots."""

    kinds = EventKinds(failed=(Failed,), aborted=(Aborted,), stepped=(Stepped,))

    def prepare(self) -> None:
        """The settings of lab 04's engine. Raises OptionError."""
        self.config = self.options.config(self.max_model_len)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token takes in all layers."""
        weight = weight_of(self.model)
        return token_bytes(self.model.config, weight.element_size(), self.options)

    def make_engine(self) -> Engine:
        """An engine with a slot for each sample that runs, or as many as fit into memory."""
        weight = weight_of(self.model)
        num_slots = self.options.num_slots(
            self.max_model_len, self.kv_bytes_per_token, weight.device
        )
        store = SlotStore(
            self.model.config, num_slots, self.max_model_len, weight.dtype, weight.device
        )
        return Engine(self.model, self.config, tokenizer=self.tokenizer, store=store)

    def describe(self, engine: Engine) -> str:
        """How many slots there are."""
        store = engine.store
        return f"the step is {self.step}; {store.num_blocks} slots of {store.block_size} tokens"
