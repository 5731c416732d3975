"""Whether a model on disk is whole: checksums, and what its values may not be. Free of torch."""
