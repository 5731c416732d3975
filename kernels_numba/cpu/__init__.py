"""Ops on the CPU in float32, compiled by numba."""
