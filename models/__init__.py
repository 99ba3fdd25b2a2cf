"""The two bundled checkpoints, and the program that makes them."""
