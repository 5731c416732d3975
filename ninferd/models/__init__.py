"""Model implementations and the batch they see."""
