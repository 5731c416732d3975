"""First half of decode attention over paged bfloat16 keys and values: every block attends to a few pages of a sequence.

Grid: (slots, kv heads). The slots are shared out among the sequences in the kernel, by lengths read from device memory
(``attention_shares``). Slots left over do nothing.

Page: ``[kv head][keys, values][PAGE_TOKENS][head_dim]``. Of every page a warp takes its own BLOCK_TOKENS, alone up to
the end: the keys times the queries of all heads of the group (S^T = K Q^T: the heads are the 8 columns of the MMA,
padded with copies of the last), a running softmax, O^T += V^T P^T. Blocks of keys and of values take turns in a ring of
RING_ENTRIES per warp, filled by asynchronous copies. What lies in the last page behind a context may be anything: the
scores of such keys are replaced, and in the place of such values the last token's are read, as 0 times a NaN is a NaN.

Shared rows are not padded: 16-byte chunk c of row r lies at chunk ``c ^ turn(r)``, so that neither 8 rows of one chunk
(ldmatrix) nor 4 chunks of 2 neighbouring rows (16-byte loads) meet in a bank.

Output, unnormalised, in the order of the MMA's results: ``partial [slot][kv head][head_dim / 16][lane] 4 floats``,
lane (g, q) holding dimensions g and g + 8 of heads 2q and 2q + 1 as (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1);
``statistics [slot][kv head][head] (maximum, sum)`` floats, 8 heads.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.attention_decode_kernels import BLOCK_TOKENS, RING_ENTRIES, SPLIT_WARPS
from kernels_numba.nvidia.attention_kernels import PAGE_TOKENS
from kernels_numba.nvidia.attention_shares import find_share
from kernels_numba.nvidia.text import Source

PARAMETERS = "query kv table lengths partial statistics sequences table_columns page_bytes group exponent"
NONE, MASKED = "f32(-1e30)", "f32(-2e30)"
WAITS = {"WAIT": RING_ENTRIES - 1}
"""Groups of copies that may be under way when what was asked for first is needed."""


def source(head_dim: int) -> str:
    w = Source("kernel", PARAMETERS)
    w("""
        P.pdl_wait()
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3)
        slot = i32(P.cta_x()); head = i32(P.cta_y()); slots = i32(P.ncta_x()); kv_heads = i32(P.ncta_y())
    """)
    w("step_pages = i32(1); behind = i32(0)")
    find_share(w, "slot >= begin and slot < begin + share")
    tile = _Bfloat16Tiles(head_dim)
    w(f"""
        if sequence < 0:
            return
        last = i32(length - 1); count = i32((length + {PAGE_TOKENS - 1}) >> 6)
        page = i32(P.u_div(u32((slot - first) * count), u32(used)))
        end = i32(P.u_div(u32((slot - first + 1) * count), u32(used)))
        pages = table + i64(sequence) * table_columns * 4
        ring = i32(sm + warp * {RING_ENTRIES * tile.bytes}); free = i32(ring + {2 * tile.bytes})
        keys = ring; values = i32(ring + {tile.bytes}); heads = i32(kv_heads * group)
    """)
    tile.prepare(w)
    w("page_id = P.ldg_i(pages + i64(page) * 4)")
    w("next_id = P.ldg_i(pages + i64(P.i_min(u32(page + 1), u32(end - 1))) * 4)")
    tile.copy(w, "keys", "page_id", "page", of_values=False)
    w("P.cp_commit()")
    tile.copy(w, "values", "page_id", "page", of_values=True)
    w("P.cp_commit()")
    tile.load_queries(w)
    w(f"m0 = {NONE}; m1 = {NONE}; l0 = f32(0); l1 = f32(0)")
    for t in range(head_dim // 16):
        w("; ".join(f"o{t}_{i} = f32(0)" for i in range(4)))
    with w.block("while page < end:"):
        w("ahead = i32(page + 1)")
        with w.block("if ahead < end:"):
            tile.copy(w, "free", "next_id", "ahead", of_values=False)
        # a barrier of the block, or the assembler mixes the turns and runs out of registers
        w("P.cp_commit(); WAIT(); P.bar_sync()")
        tile.score(w)
        _mask(w)
        w("P.syncwarp()")
        with w.block("if ahead < end:"):
            tile.copy(w, "keys", "next_id", "ahead", of_values=True)
            w("next_id = P.ldg_i(pages + i64(P.i_min(u32(ahead + 1), u32(end - 1))) * 4)")
        w("P.cp_commit()")
        _soften(w, head_dim)
        w("WAIT(); P.syncwarp()")
        tile.mix(w)
        w("P.syncwarp(); spare = values; values = keys; keys = free; free = spare; page = ahead")
    _merge(w, head_dim)
    return str(w)


def _mask(w: Source) -> None:
    """Scores of positions past the context. Only a sequence's last page has any."""
    with w.block(f"if page * {PAGE_TOKENS} + {PAGE_TOKENS} > length:"):
        w(f"token = i32(page * {PAGE_TOKENS} + warp * {BLOCK_TOKENS} + g)")
        w(f"if token > last:\n    s0 = {MASKED}; s1 = {MASKED}")
        w(f"if token + 8 > last:\n    s2 = {MASKED}; s3 = {MASKED}")


def _soften(w: Source, head_dim: int) -> None:
    """Probabilities of the scores relative to the running maximum, as the fragment ``b0, b1`` of P^T."""
    w("x0 = P.fmaxf(s0, s2); x1 = P.fmaxf(s1, s3)")
    for offset in (4, 8, 16):
        w(f"x0 = P.fmaxf(x0, P.shfl_xor_f(x0, {offset})); x1 = P.fmaxf(x1, P.shfl_xor_f(x1, {offset}))")
    for c in range(2):
        w(f"""
            x{c} = P.fmaxf(m{c}, x{c}); r{c} = P.ex2((m{c} - x{c}) * exponent); m{c} = x{c}; x{c} = -x{c} * exponent
            p{c} = P.ex2(P.fmaf(s{c}, exponent, x{c})); p{c + 2} = P.ex2(P.fmaf(s{c + 2}, exponent, x{c}))
            l{c} = l{c} * r{c} + (p{c} + p{c + 2})
        """)
    w("b0 = P.movmatrix(P.bf2_pack(p0, p1)); b1 = P.movmatrix(P.bf2_pack(p2, p3))")
    for t in range(head_dim // 16):
        w("; ".join(f"o{t}_{i} *= r{i % 2}" for i in range(4)))


def _merge(w: Source, head_dim: int) -> None:
    """The warps' results become the block's, in the memory of the rings."""
    tiles = head_dim // 16
    statistics = SPLIT_WARPS * tiles * 512
    w("P.pdl_launch(); P.bar_sync()")  # late: blocks of the next kernel would pile up where this one ends first
    w.warp_sum("l0", "l1", offsets=(4, 8, 16))
    with w.block("if g == 0:"):
        w(f"P.sts_f4(u32(sm + {statistics} + warp * 64 + q * 16), m0, l0, m1, l1)")
    w(f"at = i32(sm + warp * {tiles * 512} + lane * 16)")
    for t in range(tiles):
        w(f"P.sts_f4(u32(at + {t * 512}), o{t}_0, o{t}_1, o{t}_2, o{t}_3)")
    w("P.bar_sync(); m0 = f32(-1e30); m1 = f32(-1e30); l0 = f32(0); l1 = f32(0)")
    for i in range(SPLIT_WARPS):
        w(f"z{i} = P.lds_f4(u32(sm + {statistics + i * 64} + q * 16))")
        w(f"m0 = P.fmaxf(m0, z{i}[0]); m1 = P.fmaxf(m1, z{i}[2])")
    for i in range(SPLIT_WARPS):
        w(f"f{i} = P.ex2((z{i}[0] - m0) * exponent); e{i} = P.ex2((z{i}[2] - m1) * exponent)")
        w(f"l0 += f{i} * z{i}[1]; l1 += e{i} * z{i}[3]")
    w("place = i64(slot) * kv_heads + head")
    w("if warp + g == 0:\n    P.stg_f4(statistics + place * 64 + q * 16, m0, l0, m1, l1)")
    w(f"at = i32(sm + warp * {tiles // SPLIT_WARPS * 512} + lane * 16)")
    w(f"target = partial + place * {tiles * 512} + warp * {tiles // SPLIT_WARPS * 512} + lane * 16")
    for t in range(tiles // SPLIT_WARPS):
        for i in range(SPLIT_WARPS):
            w(f"z{i} = P.lds_f4(u32(at + {(i * tiles + t) * 512}))")
        sums = [" + ".join(f"{'fe'[c % 2]}{i} * z{i}[{c}]" for i in range(SPLIT_WARPS)) for c in range(4)]
        w(f"P.stg_f4(target + {t * 512}, {', '.join(sums)})")


def _turn(row: int) -> int:
    return (row & 1) << 2 | (row >> 1) & 3


def _block_bytes(head_dim: int) -> int:
    return BLOCK_TOKENS * head_dim * 2


class _Bfloat16Tiles:
    """How a warp's block of keys or values gets into the ring and from there into the MMA.

    Another encoding of the cache replaces this class.
    """

    def __init__(self, head_dim: int) -> None:
        self.head_dim = head_dim
        self.bytes = _block_bytes(head_dim)
        self.row_bytes = 2 * head_dim
        self.copied_rows = 512 // self.row_bytes  # by one instruction of a warp

    def prepare(self, w: Source) -> None:
        """Addresses of a lane within a block: of its copies, of the keys' and of the values' fragments."""
        row_bytes, chunks = self.row_bytes, self.head_dim // 8
        w(f"""
            row = i32(lane >> {chunks.bit_length() - 1}); chunk = i32(lane & {chunks - 1})
            warp_row = i32(warp * {BLOCK_TOKENS} + row); copy_to = i32(row * {row_bytes})
            copy_chunk = i32((chunk ^ ((row & 1) << 2 | row >> 1)) * 16)
            copy_from = kv + (i64(head) * {2 * PAGE_TOKENS} + warp_row) * {row_bytes} + chunk * 16
            key0 = i32(g * {row_bytes} + (q ^ (g >> 1)) * 16 + (g & 1) * 64); key1 = i32(key0 ^ 64)
            row = i32(lane & 7); chunk = i32((row & 1) << 2 | row >> 1)
            value = i32((row + (lane >> 4) * 8) * {row_bytes})
        """)
        for i in range(4):
            w(f"value{i} = i32(value + (({2 * i} + ((lane >> 3) & 1)) ^ chunk) * 16)")

    def load_queries(self, w: Source) -> None:
        """Queries as the MMA's B: the 8 values in a row that a lane loads are its k of two steps, as of the keys."""
        w("column = i32(P.i_min(u32(g), u32(group - 1)))")
        w(f"at = query + ((i64(sequence) * heads + head * group + column) * {self.head_dim} + q * 8) * 2")
        for j in range(self.head_dim // 32):
            w(f"q{j} = P.ldg4(at + {64 * j})")

    def copy(self, w: Source, entry: str, page_id: str, page: str, of_values: bool) -> None:
        """Begin to copy the warp's block of a page into a ring entry; rows past the context only of keys."""
        w(f"target = i32({entry} + copy_to); source = copy_from + i64({page_id}) * page_bytes")
        if not of_values:
            self._copy_rows(w)
            return
        w(f"source += {PAGE_TOKENS * self.row_bytes}")
        with w.block(f"if {page} * {PAGE_TOKENS} + {PAGE_TOKENS} <= length:"):
            self._copy_rows(w)
        with w.block("else:"):
            w(f"rest = i32(last - {page} * {PAGE_TOKENS} - warp_row)")
            with w.block(f"for row in range(0, {BLOCK_TOKENS}, {self.copied_rows}):"):
                w(f"""
                    turn = i32((row & 1) << 2 | (row >> 1) & 3)
                    kept = i64(i32(P.i_min(u32(row), u32(rest)))) * {self.row_bytes}
                    P.cp_async16(u32(target + row * {self.row_bytes} + (copy_chunk ^ (turn * 16))), source + kept)
                """)

    def _copy_rows(self, w: Source) -> None:
        for row in range(0, BLOCK_TOKENS, self.copied_rows):
            place = f"u32(target + {row * self.row_bytes} + (copy_chunk ^ {_turn(row & 7) * 16}))"
            w(f"P.cp_async16({place}, source + {row * self.row_bytes})")

    def score(self, w: Source) -> None:
        """``s0..s3`` = a row per token of ``keys``, a column per head; two sums, for a shorter chain."""
        w("; ".join(f"s{i} = f32(0); t{i} = f32(0)" for i in range(4)))
        w("at0 = i32(keys + key0); at1 = i32(keys + key1)")
        s, t = (", ".join(f"{name}{i}" for i in range(4)) for name in "st")
        for j in range(self.head_dim // 32):
            at = f"at{j % 2} + {128 * (j // 2)}"
            w(f"x = P.lds4(u32({at})); y = P.lds4(u32({at} + {8 * self.row_bytes}))")
            w(f"{s} = P.mma_bf16(x[0], y[0], x[1], y[1], q{j}[0], q{j}[1], {s})")
            w(f"{t} = P.mma_bf16(x[2], y[2], x[3], y[3], q{j}[2], q{j}[3], {t})")
        w("; ".join(f"s{i} += t{i}" for i in range(4)))

    def mix(self, w: Source) -> None:
        """``o`` += the transpose of ``values`` times the probabilities ``b0, b1``."""
        w("; ".join(f"at{i} = i32(values + value{i})" for i in range(4)))
        for t in range(self.head_dim // 16):
            o = ", ".join(f"o{t}_{i}" for i in range(4))
            w(f"v = P.ldsm4t(u32(at{t % 4} + {128 * (t // 4)}))")
            w(f"{o} = P.mma_bf16(v[0], v[1], v[2], v[3], b0, b1, {o})")


def make(head_dim: int) -> Any:
    return P.function_of(source(head_dim), "kernel", P=P, **{name: P.cp_wait(groups) for name, groups in WAITS.items()})
