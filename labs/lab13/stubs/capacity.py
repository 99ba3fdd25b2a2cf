"""From a trace to replicas and their settings."""

# lab13 task 3: this file is yours to write. Its interface stands in labs/lab13/README.md.
