"""Trains ``ninfer-tiny``, the hybrid model embedded in ninferd for tests, demos and kernel checks."""
