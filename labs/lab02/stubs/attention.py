"""Attention of T queries over S keys and values, the newest of which are the queries' own."""

# lab02 task 3: this file is yours to write. Its interface stands in labs/lab02/README.md.
