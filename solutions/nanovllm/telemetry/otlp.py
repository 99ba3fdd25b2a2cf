"""Sends spans to a collector by OTLP over HTTP, from a thread of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import nanovllm
from nanovllm.serving.app import Server
from nanovllm.serving.config import ServeConfigError
from nanovllm.telemetry.request_spans import RequestSpans

PATH = "/v1/traces"
SECONDS = 3.0  # that a collector may take for one batch, and for the last one as the server stops
SPANS = 8192  # that wait for a collector; when it is slower than that, the oldest are dropped


def endpoint(url: str) -> str:
    """Where to send spans: a collector's address, or its whole path. Raises ServeConfigError.

    >>> endpoint("http://localhost:4318")
    'http://localhost:4318/v1/traces'
    """
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            return url if parts.path.strip("/") else url.rstrip("/") + PATH
    except ValueError:  # as of http://[::1
        pass
    raise ServeConfigError(
        f"--otlp {url} is no address of a collector: use http://localhost:4318 or the like."
    )


@contextmanager
def tracing(server: Server, url: str) -> Iterator[None]:
    """Trace the server's requests for as long as the block runs; serving waits for no collector."""
    exporter = OTLPSpanExporter(endpoint(url), timeout=SECONDS)
    processor = BatchSpanProcessor(exporter, max_queue_size=SPANS)
    about = {"service.name": "nanovllm", "service.version": nanovllm.__version__}
    resource = Resource.create(about)
    spans = RequestSpans(processor, resource, server.config.model_name, server.monitor.clock)
    server.handlers.watchers.append(spans.watch)
    server.engine.observers.append(spans.observe)
    try:
        yield
    finally:
        last = threading.Thread(target=processor.shutdown, daemon=True)
        last.start()
        last.join(SECONDS)
