"""The metrics themselves, with vLLM's names and buckets under `nanovllm:` (given).

Source: vllm/v1/metrics/loggers.py of vLLM 0.32. A Counter's name is exported with `_total`.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LABELS = ("model_name", "engine")
REASONS = ("stop", "length", "abort", "error")
SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
           120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
        10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0)  # fmt: skip
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Registry:
    """All metrics of one server; each attribute is bound to its model's labels already."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.labels = (model_name, "0")
        self.running = self.gauge("num_requests_running", "Samples in the batch.")
        self.waiting = self.gauge("num_requests_waiting", "Samples in the queue.")
        self.kv_usage = self.gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.")
        self.prefix_queries = self.counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self.prefix_hits = self.counter("prefix_cache_hits", "Prompt tokens found there.")
        self.preemptions = self.counter("num_preemptions", "Samples sent back to the queue.")
        self.prompt_tokens = self.counter("prompt_tokens", "Prompt tokens read.")
        self.generation_tokens = self.counter("generation_tokens", "Tokens generated.")
        success = Counter(
            "nanovllm:request_success",
            "Samples that ended, by the reason why.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self.ended = {reason: success.labels(*self.labels, reason) for reason in REASONS}
        self.step_tokens = self.histogram(
            "iteration_tokens_total", "Tokens computed in a step.", TOKENS
        )
        self.ttft = self.histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", TTFT
        )
        self.itl = self.histogram(
            "inter_token_latency_seconds", "Between two tokens of a sample.", TPOT
        )
        self.tpot = self.histogram(
            "request_time_per_output_token_seconds",
            "Of a finished sample: seconds a token after the first.",
            TPOT,
        )
        self.e2e = self.histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", SECONDS
        )
        self.queue = self.histogram(
            "request_queue_time_seconds", "From arrival to the first admission.", SECONDS
        )
        self.prefill = self.histogram(
            "request_prefill_time_seconds", "From the first admission to the first token.", SECONDS
        )
        self.decode = self.histogram(
            "request_decode_time_seconds", "From the first token to the last.", SECONDS
        )

    def counter(self, name: str, says: str) -> Counter:
        """A new counter of this name."""
        metric = Counter(f"nanovllm:{name}", says, LABELS, registry=self.registry)
        return metric.labels(*self.labels)

    def gauge(self, name: str, says: str) -> Gauge:
        """A new gauge of this name."""
        return Gauge(f"nanovllm:{name}", says, LABELS, registry=self.registry).labels(*self.labels)

    def histogram(self, name: str, says: str, buckets: tuple[float, ...]) -> Histogram:
        """A new histogram of this name."""
        metric = Histogram(
            f"nanovllm:{name}", says, LABELS, registry=self.registry, buckets=buckets
        )
        return metric.labels(*self.labels)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
