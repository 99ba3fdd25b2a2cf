"""Spans of a server's requests, sent to a collector of OpenTelemetry: `nanovllm serve --otlp`."""
