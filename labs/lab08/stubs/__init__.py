"""Speculative decoding: guess several tokens, verify them in one step, keep what stands."""
