"""Training byte-pair encoding: `train_bpe` learns a vocabulary from texts."""

# lab01 task 1: this file is yours to write. Its interface stands in labs/lab01/README.md.
