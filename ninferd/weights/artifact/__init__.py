"""The ``.ninfer`` container: framing, directory, reader and writer. Knows byte ranges and names, nothing of models."""
