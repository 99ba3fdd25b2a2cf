"""The block manager: which request holds which blocks (see interface.py). No tensors here."""

# lab05 task 7: this file is yours to write. Its interface stands in labs/lab05/README.md.
