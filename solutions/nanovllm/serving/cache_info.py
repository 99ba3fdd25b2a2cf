"""How the KV cache is cut and kept, as labels of one metric, with vLLM's names (given).

Source: `log_metrics_info` in vllm/v1/metrics/loggers.py of vLLM 0.32.
"""

from collections.abc import Callable
from typing import Any

from prometheus_client import Gauge

from nanovllm.serving.registry import Registry
from nanovllm.serving.snapshot import kv_facts


def export_cache_config(registry: Registry, store: Any) -> Callable[[], None]:
    """Add `cache_config_info`: always 1; what it tells is in its labels.

    Call what it returns when the cache has changed.
    """
    name, says = "nanovllm:cache_config_info", "How the KV cache is cut and kept."
    names = list(_labels(registry, store))
    info = Gauge(name, says, names, registry=registry.registry)

    def tell() -> None:
        info.clear()
        info.labels(**_labels(registry, store)).set(1)

    tell()
    return tell


def _labels(registry: Registry, store: Any) -> dict[str, Any]:
    facts = kv_facts(store)
    return {
        "block_size": facts["block_size"],
        "bytes_per_token": facts["bytes_per_token"],  # vLLM has none
        "cache_dtype": facts["cache_dtype"],
        "enable_prefix_caching": facts["prefix"] is not None,
        "engine": registry.labels[1],
        "num_gpu_blocks": facts["num_blocks"],
    }
