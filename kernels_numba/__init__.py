"""The ops that the models call, each with a reference, a CPU and a CUDA implementation."""
