from __future__ import annotations

from hypothesis import settings

settings.register_profile("tests", deadline=None)  # the machine may be busy
settings.load_profile("tests")
