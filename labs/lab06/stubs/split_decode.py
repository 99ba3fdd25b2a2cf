"""Split-KV decode (Flash-Decoding, Dao et al. 2023): many programs share one long context."""

# lab06 task 7: this file is yours to write. Its interface stands in labs/lab06/README.md.
