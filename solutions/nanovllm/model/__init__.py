"""Lab 02: a transformer that reads like the paper, and the cache that makes its decoding cheap."""
