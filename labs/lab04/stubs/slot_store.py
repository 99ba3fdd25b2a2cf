"""`SlotStore`: K and V of many requests; each has a slot of its own, as long as the longest one."""

# lab04 task 5: this file is yours to write. Its interface stands in labs/lab04/README.md.
