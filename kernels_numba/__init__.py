"""The op table and its reference, CPU and CUDA implementations."""
