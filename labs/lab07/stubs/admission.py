"""Who is let in: within the rate of their key, while there is room, until the server drains."""

import math
import time
from collections.abc import Callable

from nanovllm.serving.config import ServeConfig
from nanovllm.serving.errors import BadRequestError, OverloadedError, RateLimitError

# lab07 task 4: this file is yours to write. Its interface stands in labs/lab07/README.md.
