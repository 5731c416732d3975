"""CUDA kernels written in Python: compiled ahead of time by numba, launched through cuda.bindings."""
