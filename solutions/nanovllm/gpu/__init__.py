"""The GPU path: lab 14's engine with lab 06's kernels, as CUDA graphs, and a way back.

`available` says why it cannot be used; GpuEngine has the face of
the plain engine, and its decisions. Not verified on a GPU: it was tested as a whole on a CPU, with
kernels in Triton's interpreter and the capture replaced, but has never run on the hardware that
it is for.
"""

from nanovllm.gpu.availability import GpuPathError, available

__all__ = ["GpuPathError", "available"]
