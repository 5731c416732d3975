"""The engine: scheduler, batches, sampling, and its process boundary."""
