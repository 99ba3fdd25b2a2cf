"""The block pool: who holds which block (see interface.py). No tensors here."""

# lab05 task 2: this file is yours to write. Its interface stands in labs/lab05/README.md.
