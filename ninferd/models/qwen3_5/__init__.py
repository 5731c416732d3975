"""The Qwen3.5 hybrid architecture (dense and MoE), text path."""
