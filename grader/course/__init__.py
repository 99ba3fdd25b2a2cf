"""What every room uses: where things are, the labs, what the builder recorded of them, errors."""
