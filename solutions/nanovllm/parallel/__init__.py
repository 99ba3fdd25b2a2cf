"""Lab 10: one model on several ranks."""
