"""numba CPU implementations of ops."""
