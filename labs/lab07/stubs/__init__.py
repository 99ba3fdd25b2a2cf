"""Serving: the engine behind an HTTP interface that OpenAI's clients understand."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent until configure_logs
