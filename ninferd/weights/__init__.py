"""Weights on disk: where an artifact is, what it holds, and its tensors."""
