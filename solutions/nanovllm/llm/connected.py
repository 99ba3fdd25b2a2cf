"""Lab 11: an engine whose K and V come from others, or go to them."""

from typing import TYPE_CHECKING

from nanovllm.batching.engine import Engine
from nanovllm.cluster.connected_store import ConnectedStore
from nanovllm.cluster.header import fingerprint
from nanovllm.generation.request import weight_of
from nanovllm.llm.read_options import OptionError
from nanovllm.llm.scoring import salt_of

if TYPE_CHECKING:
    from nanovllm.llm.llm import LLM

NOT_WITH_A_ROLE = {  # option -> the only value that goes
    "speculative_config": None,
    "kv_cache_dtype": "auto",
    "in_processes": False,
    "swap_space": 0,
}


def connected_engine(llm: "LLM", seconds: float) -> Engine:
    """An engine on a ConnectedStore of the sizes that the LLM was given. Raises OptionError."""
    llm.level.require("lab05", "--role")
    for name, value in NOT_WITH_A_ROLE.items():
        if getattr(llm.options, name) != value:
            said = "several ranks" if name == "in_processes" else name
            raise OptionError(f"--role does not go with {said}; leave one of them out.")
    # llm.runner makes no engine for it: that would take the weights and the room a second time.
    weight, options = weight_of(llm.model), llm.options
    connected = ConnectedStore(
        llm.model.config,
        options.num_blocks(llm.max_model_len, llm.kv_bytes_per_token, weight.device),
        options.block_size,
        weight.dtype,
        weight.device,
        enable_prefix_caching=options.enable_prefix_caching,
        salt_of=salt_of,
        model=fingerprint(llm.model),
        seconds=seconds,
    )
    config = options.config(llm.max_model_len)
    return Engine(llm.model, config, tokenizer=llm.tokenizer, store=connected)
