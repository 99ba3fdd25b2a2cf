"""What is wrong with a quantized checkpoint, or with what was asked for (given)."""


class QuantizationError(ValueError):
    """One sentence: what was given, what was expected, what to do."""
