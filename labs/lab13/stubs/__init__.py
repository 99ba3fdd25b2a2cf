"""Lab 13: traces, what they ask for, and what a running server tells."""
