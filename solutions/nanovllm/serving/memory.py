"""Where memory is: weights, K and V, activations, the rest; what blocks leave unused (given)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def fragmentation(kv: dict[str, Any], running: Sequence[dict[str, Any]]) -> float:
    """Share of the slots in held blocks that hold no token; 0 where nobody holds any.

    >>> rows = [{"blocks": [3, 5], "computed_tokens": 20}, {"blocks": [3], "computed_tokens": 16}]
    >>> fragmentation({"block_size": 16}, rows)  # 12 of 32 slots
    0.375
    """
    size = kv["block_size"]
    held = len({block for row in running for block in row["blocks"]}) * size
    unused = sum(max(0, len(r["blocks"]) * size - r["computed_tokens"]) for r in running)
    return min(1.0, unused / held) if held else 0.0


class Memory:
    """The parts of one engine's memory, in bytes. Stand-ins without a model have none."""

    def __init__(self, engine: Any) -> None:
        model: Any = getattr(engine, "model", None)
        self.known = isinstance(model, torch.nn.Module)
        if not self.known:
            return
        tensors = {x.data_ptr(): x for x in (*model.parameters(), *model.buffers())}
        self.weights = sum(x.nbytes for x in tensors.values())
        self.on_gpu = any(x.device.type == "cuda" for x in tensors.values())
        config, settings = model.config, engine.config
        width = 4 * config.hidden_size + 2 * config.num_heads * config.head_dim
        width += 2 * config.intermediate_size
        dtype = next(iter(tensors.values())).element_size()
        rows = settings.max_num_seqs * config.vocab_size * 4  # logits
        self.activations = settings.max_num_batched_tokens * width * dtype + rows

    def facts(self, kv: dict[str, Any]) -> dict[str, int] | None:
        """Now. activations: of the largest step, by its shapes. rest: what the process (on a GPU:
        torch there) has besides; K and V count in it only as far as blocks were ever used."""
        if not self.known:
            return None
        cached = len(kv["cached_blocks"]) * kv["block_size"]
        used = int((kv["total_tokens"] - kv["free_tokens"] + cached) * kv["bytes_per_token"])
        return {
            "weights": self.weights,
            "kv": kv["bytes_per_token"] * kv["total_tokens"],
            "kv_used": used,
            "activations": self.activations,
            "rest": max(0, self._whole() - self.weights - used - self.activations),
        }

    def _whole(self) -> int:
        if self.on_gpu:
            return torch.cuda.memory_reserved()
        try:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        except OSError:  # not Linux: only the largest there ever was is told
            import resource

            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return pages * os.sysconf("SC_PAGE_SIZE")
