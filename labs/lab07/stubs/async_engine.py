"""Lets an event loop use an engine that blocks: a thread that steps, a stream for each request."""

# lab07 task 1: this file is yours to write. Its interface stands in labs/lab07/README.md.
