"""Prompt lookup: what followed the newest tokens where they stood for the first time."""

# lab08 task 1: this file is yours to write. Its interface stands in labs/lab08/README.md.
