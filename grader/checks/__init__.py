"""What a check and its card are made of, and the pytest plugin that runs them."""
