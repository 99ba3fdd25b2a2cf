"""Continuous batching: requests join and leave the batch at every step."""
