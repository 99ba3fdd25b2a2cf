"""The engine's decode path on a GPU: fused kernels, CUDA graphs, steps planned one ahead.

Not verified on a GPU: its parts were tested on a CPU (kernels in Triton's interpreter, the capture
replaced, the device a fake), but the whole has never run on the hardware that it is for.
"""
