"""What memory refuses."""

from __future__ import annotations

from ninferd.errors import InputError, NinferError


class CapacityError(InputError):
    """The configured capacity cannot be provided; the message carries the numbers."""


class InvariantError(NinferError):
    """The bookkeeping of a pool contradicts itself; nothing it says can be trusted any more."""
