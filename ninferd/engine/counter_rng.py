"""Random numbers addressed by (seed, counter), so that a request's draws do not depend on its neighbours."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_BITS: Final = 48  # u * total < total holds in float64 with room to spare


def uniforms(seeds: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Uniform in [0, 1), one per (seed, counter): SplitMix64 (Steele, Lea, Flood 2014) started at a mixed seed."""
    bits = _mix(_mix(seeds) + (counters + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(64 - _BITS)).astype(np.float64) * 2.0**-_BITS


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64, a bijection of 64-bit words."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
