"""Tensor formats: names, planes, sizes, exact values."""
