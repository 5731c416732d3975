"""Ops in plain torch, for any device and dtype."""
