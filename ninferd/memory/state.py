"""Recurrent state slots: convolution history and delta-rule state of each running sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_numba.shapes import GatedDeltaPending
from ninferd.memory.errors import InvariantError
from ninferd.memory.geometry import StateGeometry


@dataclass(frozen=True)
class StateSlot:
    """A held slot; the generation makes a handle kept after release detectable."""

    index: int
    generation: int


def _pending(geometry: StateGeometry, slots: int, device: torch.device, conv_dtype: torch.dtype) -> GatedDeltaPending:
    rows = slots, geometry.gdn_layers, geometry.pending_rows
    key = geometry.key_heads, geometry.key_head_dim
    value = geometry.value_heads, geometry.value_head_dim
    return GatedDeltaPending(
        inputs=torch.zeros((*rows, geometry.conv_channels), dtype=conv_dtype, device=device),
        keys=torch.zeros((*rows, *key), dtype=torch.float32, device=device),
        deltas=torch.zeros((*rows, *value), dtype=torch.float32, device=device),
        log_decays=torch.zeros((*rows, geometry.value_heads), dtype=torch.float32, device=device),
    )


class StateCache:
    """``slots`` interchangeable state images on the device, each free or held by one sequence.

    Rows of a round that are not decided yet lie beside them, if the geometry has any; of a slot just acquired none are.
    """

    def __init__(self, geometry: StateGeometry, slots: int, device: torch.device, conv_dtype: torch.dtype) -> None:
        if conv_dtype.itemsize != geometry.conv_element_bytes:
            raise ValueError(f"geometry counts {geometry.conv_element_bytes} bytes per element, not {conv_dtype}")
        self.conv = torch.zeros((slots, *geometry.conv_shape), dtype=conv_dtype, device=device)
        self.recurrent = torch.zeros((slots, *geometry.recurrent_shape), dtype=torch.float32, device=device)
        self.pending = _pending(geometry, slots, device, conv_dtype) if geometry.pending_rows else None
        self._free = list(range(slots - 1, -1, -1))
        self._generations = [0] * slots
        self._held = [False] * slots

    @property
    def capacity(self) -> int:
        """All slots."""
        return len(self._held)

    @property
    def used(self) -> int:
        """Slots held."""
        return self.capacity - len(self._free)

    def acquire(self) -> StateSlot | None:
        """A zeroed slot (the state of an empty sequence), or None if all are held."""
        if not self._free:
            return None
        index = self._free.pop()
        self._held[index] = True
        self.conv[index].zero_()
        self.recurrent[index].zero_()
        return StateSlot(index, self._generations[index])

    def release(self, slot: StateSlot) -> None:
        """Give a slot back; a stale handle is an error."""
        if not self._held[slot.index] or self._generations[slot.index] != slot.generation:
            raise InvariantError(f"state slot {slot.index} (generation {slot.generation}) is not held")
        self._held[slot.index] = False
        self._generations[slot.index] += 1
        self._free.append(slot.index)

    def check(self) -> None:
        """Raise InvariantError unless every slot is exactly one of free and held."""
        if sorted(self._free) != [index for index, held in enumerate(self._held) if not held]:
            raise InvariantError(f"state slots: free {sorted(self._free)}, held map {self._held}")
