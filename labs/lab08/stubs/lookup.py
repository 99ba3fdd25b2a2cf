"""Prompt lookup: what followed the newest tokens when they were last written, earlier on."""

# lab08 task 1: this file is yours to write. Its interface stands in labs/lab08/README.md.
