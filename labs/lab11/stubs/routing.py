"""Routing policies: which replica answers a request (see routing_interface.py)."""

# lab11 task 4: this file is yours to write. Its interface stands in labs/lab11/README.md.
