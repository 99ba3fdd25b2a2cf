"""Lab 14: where the time of a step goes, and how to spend less of it; mixture of experts."""
