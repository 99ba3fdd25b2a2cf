"""The text the bundled models are trained on: all of it generated, all of it from a seed."""

from .mixture import Mixture, document
from .spans import END_OF_TEXT, Span, plain

__all__ = ["END_OF_TEXT", "Mixture", "Span", "document", "plain"]
