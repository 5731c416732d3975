"""Synthetic conversations for ``ninfer-tiny``: one module per family, all seeded, train and held-out disjoint."""
