"""Lab 12: faults on purpose, and an engine that goes on after them."""
