"""Byte counts for people."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """Binary units with one decimal: ``1.5 GiB``; whole bytes below 1 KiB."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"
