"""Side-by-side runs against peers, and their recorded results; see README.md."""
