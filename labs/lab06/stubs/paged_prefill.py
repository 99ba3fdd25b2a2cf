"""Attention of chunks of prompts over the paged cache: ragged, causal (FlashAttention-2)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# lab06 task 8: this file is yours to write. Its interface stands in labs/lab06/README.md.
