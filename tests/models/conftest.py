"""Models that the tests of this package share."""

from tests.support.fixtures import saved

__all__ = ["saved"]
