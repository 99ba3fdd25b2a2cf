"""The open beams of a search and the hypotheses that have ended: the class `BeamSearch`.

The handout's task 3 gives its interface; what it keeps, and how, is up to you.
"""

# lab03 task 3: this file is yours to write. Its interface stands in labs/lab03/README.md.
