"""Typed, layered, traceable configuration."""
