"""The command `lab`: board, hints, reset, diff, pack, watch, demo, notebook helpers."""
