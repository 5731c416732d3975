"""Hugging Face model directories: configuration, safetensors shards, quantised layouts."""
