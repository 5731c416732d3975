"""What the block kernel (``linear_block``) and its launches share: stages, units of weights and shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from kernels_numba.nvidia.linear_formats import NVFP4, PLACE_BYTES, TILE_ROWS

WARPS = 16
DEPTHS = {1: 9, 4: 8, 8: 6}
"""Slots of a warp's ring, by the most rows of activations: what fits beside those rows."""
SLOT_BYTES = NVFP4.step_bytes
QUADS = 3
"""Groups of four activations that a thread converts at once, of each row."""
LOADED_ROWS = {1: 1, 4: 2, 8: 2}
"""Rows of them that are under way at a time: what registers allow."""
RUNS = 24
"""Most pieces of tiles that a warp multiplies in one launch."""
SENDERS = 160
"""Most blocks that leave statistics."""
STATISTICS_ROWS = 8
"""Places for rows of activations in statistics of blocks."""
COUNTER_STRIDE = 32
"""Words between counters, each in a line of its own: of three barriers, then of the blocks that share tiles."""
COUNTERS_OF_GROUPS = 3


@dataclass(frozen=True)
class Unit:
    """What a slot of a ring holds: 16 rows of some columns, two pieces of 512 bytes, then scales if there are any."""

    size_bytes: int
    columns: int
    scale_words: int
    fragment: Callable[[int], str]  # as ``StreamFormat.fragment``


def _plain(group: int) -> str:
    return "\n".join(f"a{index} = C{group}[{index}]" for index in range(4))


NVFP4_UNIT = Unit(NVFP4.step_bytes, 128, NVFP4.scale_words, NVFP4.fragment)
SIDE_UNIT = Unit(1024, 32, 0, _plain)


@dataclass(frozen=True)
class Stage:
    """One product; sizes are expressions of the kernel's parameters."""

    name: str
    rows: str
    columns: str
    slices: str = "1"  # blocks that share tiles, each a part of their columns
    is_pair: bool = False  # tiles of a gate, and then those of the values it gates
    sides: str = "0"  # tiles of plain rows beside


STAGES = (
    Stage("out", "width", "mixed_width", slices="out_slices"),
    Stage("gate_up", "inner", "width", is_pair=True),
    Stage("down", "width", "inner", slices="down_slices"),
    Stage("in", "in_rows", "width", sides="side_rows >> 4"),
)


def activation_pitch(columns: int) -> int:
    """Bytes of 32 columns of activations, longer than they need be so that quads of a warp meet no bank twice."""
    return 64 * columns + (64 if columns > 1 else 0)


@dataclass(frozen=True)
class Shared:
    """Offsets in dynamic shared memory; activations follow the pieces, of which the launch says how many there are."""

    columns: int
    warps: int = WARPS

    @property
    def depth(self) -> int:
        return DEPTHS[self.columns]

    @property
    def ring_bytes(self) -> int:
        return self.depth * SLOT_BYTES

    @property
    def flag(self) -> int:
        return self.warps * self.ring_bytes

    @property
    def down(self) -> int:
        """What the products of each row are multiplied by."""
        return self.flag + 16

    @property
    def up(self) -> int:
        """What each row of activations is multiplied by before it is rounded to halves."""
        return self.down + 4 * STATISTICS_ROWS

    @property
    def per_warp(self) -> int:
        return self.up + 4 * STATISTICS_ROWS

    @property
    def norms(self) -> int:
        """Scale of each of the two norms' values, and its inverse."""
        return self.per_warp + self.warps * 4 * STATISTICS_ROWS

    @property
    def plan(self) -> int:
        """Eight words of each stage."""
        return self.norms + 16

    @property
    def runs(self) -> int:
        return self.plan + 32 * len(STAGES)

    @property
    def pieces(self) -> int:
        return self.runs + self.warps * RUNS * 16

    def total_bytes(self, slots: int, most_columns: int) -> int:
        """With so many pieces of tiles, and activations of so many columns."""
        return self.pieces + slots * PLACE_BYTES + -(-most_columns // 32) * activation_pitch(self.columns)


@dataclass(frozen=True)
class Sizes:
    """A block's: of what lies between two mixers."""

    mixed_width: int
    width: int
    inner: int
    in_rows: int  # 0 if nothing follows
    side_rows: int


@dataclass(frozen=True)
class Cut:
    """How blocks share the work."""

    out_slices: int
    down_slices: int
    in_tiles_beside: int  # of a block that multiplies a tile of plain rows too
    slots: int
    shared_bytes: int


def cut_of(sizes: Sizes, columns: int, blocks: int, shared_bytes: int, warps: int = WARPS) -> Cut | None:
    """None if a kernel cannot do it: sizes it does not take, or too little memory."""
    widths = (sizes.mixed_width, sizes.width, sizes.inner)
    if any(each % STEP for each in widths) or sizes.in_rows % TILE_ROWS or sizes.side_rows % TILE_ROWS:
        return None
    most_columns = 4 * QUADS * 32 * warps
    out = _slices(sizes.mixed_width, blocks, most_columns)
    down = _slices(sizes.inner, blocks, most_columns)
    side_tiles, in_tiles = sizes.side_rows // TILE_ROWS, sizes.in_rows // TILE_ROWS
    if blocks > SENDERS or out is None or down is None or sizes.width > most_columns or side_tiles >= blocks:
        return None
    beside = max(0, round((in_tiles + side_tiles * SIDE_TILES) / blocks - SIDE_TILES)) if side_tiles else 0
    steps = sizes.width // STEP
    if beside * steps < warps:
        beside = 0  # all warps of a block have a part of a stage, or none
    counts = [
        (sizes.width // TILE_ROWS, blocks // out, 1, sizes.mixed_width // STEP // out),
        (sizes.inner // TILE_ROWS, blocks, 2, steps),
        (sizes.width // TILE_ROWS, blocks // down, 1, sizes.inner // STEP // down),
        *([(in_tiles - beside * side_tiles, blocks - side_tiles, 1, steps)] if sizes.in_rows else []),
    ]
    most_tiles, runs = 1, 0
    for tiles, sharing, times, each in counts:
        if tiles // sharing * times * each < warps:
            return None  # idle warps
        listed = ceil(tiles / sharing) * times
        most_tiles = max(most_tiles, listed)
        runs += (ceil(listed * each / warps) - 1) // each + 2
    cut = Cut(out, down, beside, most_tiles + warps, 0)
    total = Shared(columns, warps).total_bytes(
        cut.slots, max(sizes.mixed_width // out, sizes.inner // down, sizes.width)
    )
    if runs + 2 * bool(side_tiles) > RUNS - 1 or total > shared_bytes:
        return None
    return Cut(out, down, beside, cut.slots, total)


STEP = NVFP4_UNIT.columns
SIDE_TILES = 3.6
"""Tiles of NVFP4 that take as long as one of bfloat16."""
SLICES = (4, 2, 1)
"""In the order of preference."""


def _slices(columns: int, blocks: int, most_columns: int) -> int | None:
    fitting = (
        slices
        for slices in SLICES
        if columns // STEP % slices == 0 and columns // slices <= most_columns and slices <= blocks
    )
    return next(fitting, None)
