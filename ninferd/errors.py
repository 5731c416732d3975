"""Root of every error that ninferd raises on purpose."""


class NinferError(Exception):
    """An expected failure with a message fit for the operator or the client."""
