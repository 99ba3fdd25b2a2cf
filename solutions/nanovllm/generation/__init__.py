"""Prefill and decode: from a model that scores tokens to a request that is answered."""
