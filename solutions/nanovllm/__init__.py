"""The reference version of the engine; `nanovllm/__init__.py` at the root puts it on the path."""
