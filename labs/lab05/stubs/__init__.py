"""Paging: K and V in small blocks that need not be neighbours, and may have several owners."""
