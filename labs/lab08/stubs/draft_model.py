"""A small model that guesses for the large one: K and V of its own, k forwards for all requests."""

# lab08 task 3: this file is yours to write. Its interface stands in labs/lab08/README.md.
