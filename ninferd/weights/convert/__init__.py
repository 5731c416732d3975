"""Conversion of a model into an artifact: recipes, inventory, quantising, streaming."""
