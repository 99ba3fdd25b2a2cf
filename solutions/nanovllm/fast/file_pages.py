"""Weights that are mapped from a file, and packed: their pages need not be in memory, too."""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch
from torch import Tensor

ENTRY = (
    8  # bytes of /proc/self/pagemap for a page, https://docs.kernel.org/admin-guide/mm/pagemap.html
)
HELD, OF_A_FILE = 62, 61  # bits: in memory or swapped out (63 and 62); what a file has, too


def give_back(tensor: Tensor) -> None:
    """Let go of a tensor's pages whose values are a file's: who reads them has them from there.

    Pages that were written to, or never were a file's, stay; so do all where the system does not
    tell which those are (only Linux does).
    """
    first = -(-tensor.data_ptr() // mmap.PAGESIZE)
    count = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE - first
    if sys.platform != "linux" or tensor.device.type != "cpu" or count <= 0:
        return
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(ENTRY * first)
            entries = bytearray(file.read(ENTRY * count))
    except OSError:
        return
    if len(entries) < ENTRY * count:
        return
    pages = torch.frombuffer(entries, dtype=torch.int64)
    own = (pages >> HELD != 0) & (pages >> OF_A_FILE & 1 == 0)
    if not own.any():
        length = ctypes.c_size_t(count * mmap.PAGESIZE)
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first * mmap.PAGESIZE), length, mmap.MADV_DONTNEED
        )
