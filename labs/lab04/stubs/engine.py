"""`Engine`: a loop that never stops for one request, and never mixes two up."""

# lab04 task 6: this file is yours to write. Its interface stands in labs/lab04/README.md.
