"""Split-KV decode (Flash-Decoding, Dao et al. 2023): many programs share one long context."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# lab06 task 7: this file is yours to write. Its interface stands in labs/lab06/README.md.
