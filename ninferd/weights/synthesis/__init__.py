"""Models of random weights with the statistics of real ones, for benchmarks and tests."""
