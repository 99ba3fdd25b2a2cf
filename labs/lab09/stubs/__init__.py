"""Lab 09: weights, activations and the K/V cache in fewer bits."""
