"""First half of decode attention over paged keys and values of any codec: several query rows of every sequence.

Grid: (slots, kv heads). Slots are shared out among the sequences by lengths in device memory (``attention_shares``);
a block goes through its part of a sequence in steps of ``step_pages`` pages, 4 warps together. The columns of the MMAs
are the query rows that share a kv head, column = token * group + head, in ``tiles`` tiles of 8. A step has two halves:

1. every warp scores its own 16 tokens of each page, S^T = K Q^T, and leaves their probabilities in shared memory;
2. every warp takes 64 of the 256 dimensions and adds the products of all tokens, O^T += V^T P^T.

So nothing is decoded twice. Keys and values of pages take turns in a ring of ``entries``, filled by asynchronous
copies: whatever lies in front of a half is copied while earlier ones are computed.

Probabilities are relative to a reference for each column, which is the same in all warps. It is the maximum of what
came first, and is replaced (``_rebase``) only when a probability exceeds it by 2 ** HEADROOM: then no maxima have to be
exchanged and no sums rescaled in most steps, as results do not depend on the reference.

What lies in the last page behind a context may be anything. Scores of such keys are replaced; such values meet
probabilities of zero, and whatever of them could be other than finite is overwritten in shared memory before.

Lengths, page tables and pages behind which nothing new was written are read before the kernel in front has ended: they
must not be written by a kernel that lets its successor start early, as only ``append_kv`` does with its last rows.

Output, unnormalised, in the order of the MMA's results: ``partial [slot][kv head][tile][16 dimension tiles][lane]``
4 floats, lane (g, q) holding dimensions g and g + 8 of columns 2q and 2q + 1 as (g, 2q), (g, 2q + 1), (g + 8, 2q),
(g + 8, 2q + 1); ``statistics [slot][kv head][tile][column] (reference, sum)`` floats, 8 columns.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia import tiles as F
from kernels_numba.nvidia.attention_codecs import CODECS
from kernels_numba.nvidia.attention_decode_plan import PagedPlan
from kernels_numba.nvidia.attention_shares import find_share
from kernels_numba.nvidia.text import Source

PARAMETERS = (
    "query kv table lengths partial statistics "
    "sequences table_columns page_bytes group tokens row_tokens behind exponent"
)
NONE = "f32(-1e30)"
HEADROOM = 4
"""Binary orders of magnitude by which a probability may exceed its reference."""


class Paged:
    """The source of one kernel."""

    def __init__(self, plan: PagedPlan) -> None:
        self.plan = plan
        self.codec = CODECS[plan.codec](plan)
        self.tiles = range(plan.tiles)
        self.pages = range(plan.step_pages)
        self.w = Source("kernel", PARAMETERS)

    def source(self) -> str:
        w, plan = self.w, self.plan
        w(f"""
            sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
            g = i32(lane >> 2); q = i32(lane & 3); step_pages = i32({plan.step_pages})
            slot = i32(P.cta_x()); head = i32(P.cta_y()); slots = i32(P.ncta_x()); kv_heads = i32(P.ncta_y())
        """)
        find_share(w, "slot >= begin and slot < begin + share")
        w(f"""
            if sequence < 0:
                P.pdl_wait()
                return
            count = i32((length + 63) >> 6); last_page = i32(count - 1)
            steps = i32((count + {plan.step_pages - 1}) >> {plan.step_pages.bit_length() - 1})
            step = i32(P.u_div(u32((slot - first) * steps), u32(used)))
            end = i32(P.u_div(u32((slot - first + 1) * steps), u32(used)))
            pages = table + i64(sequence) * table_columns * 4
            origin = kv + i64(head) * {plan.head_bytes}
        """)
        self.codec.prepare(w)
        self._first_copies()
        self._load_queries()
        w("fresh = i32(1)")
        for tile in self.tiles:
            w(f"m{tile}_0 = {NONE}; m{tile}_1 = {NONE}; l{tile}_0 = f32(0); l{tile}_1 = f32(0)")
        w(f"zero = (f32(0), f32(0), f32(0), f32(0)); none = ({'zero, ' * plan.tiles})")
        w("; ".join(f"o{i} = none" for i in range(4)))
        if plan.warpgroup:
            w(f"qd = F.b_descriptor(u32(sm + {plan.queries}), none)")
            w(f"pd = F.b_descriptor(u32(sm + {plan.probabilities}), none)")
        with w.block("while step < end:"):
            # the next kernel's blocks come while the last step is computed: all of this one's are there by then
            w("if step + 1 == end:\n    P.pdl_launch()")
            w("WAIT(); P.bar_sync()")
            self._copy_ahead(0)
            self.codec.score(w)
            self._done("s", plan.step_pages)
            self._mask()
            self._soften()
            w("WAIT(); over = P.bar_or(over)")
            self._turn()
            self._copy_ahead(1)
            with w.block("if over > 0:"):
                self._rebase()
            w("fresh = i32(0)")
            for tile in self.tiles:
                w(f"l{tile}_0 += y{tile}_0; l{tile}_1 += y{tile}_1")
            if self.codec.scrubs:
                with w.block(f"if (step + 1) * {64 * plan.step_pages} > length:"):
                    self.codec.scrub(w)
                    w("P.bar_sync()")
            for pair in range(2 * plan.step_pages):
                if not plan.warpgroup:
                    tiles = ", ".join(
                        f"P.ldsm4t(u32(sm + {plan.probabilities + (pair * plan.tiles + tile) * 512} + lane * 16))"
                        for tile in self.tiles
                    )
                    w(f"b = ({tiles},)")
                self.codec.mix(w, pair)
            self._done("o", 4)
            self._turn()
            w("step = i32(step + 1)")
        self._store()
        return str(w)

    # ---- copies
    def _load_ids(self, name: str, step: str) -> None:
        for page in self.pages:
            index = f"i32(({step}) * {self.plan.step_pages} + {page})"
            self.w(f"{name}{page} = P.ldg_i(pages + i64(P.i_min(u32({index}), u32(last_page))) * 4)")

    def _copy(self, values: bool, step: str, entry: str) -> None:
        """Copy the keys or the values of a step, and remember the pages: values follow their keys."""
        with self.w.block(f"if {step} < end:"):
            self.codec.copy(self.w, values, "v" if values else "k", entry)
        if not values:
            for page in self.pages:
                self.w(f"v{page} = k{page}")
            self._load_ids("k", f"{step} + 1")
        self.w("P.cp_commit()")

    def _first_copies(self) -> None:
        w, plan = self.w, self.plan
        steps = plan.entries // 2
        for ahead in range(steps):
            self._load_ids(f"a{ahead}_", f"step + {ahead}")
        w(f"""
            if (step + {steps}) * {64 * plan.step_pages} > length + behind - row_tokens:
                P.pdl_wait()
            current = i32(sm); previous = i32(sm + {(plan.entries - 1) * plan.entry_bytes})
        """)
        for ahead in range(steps):
            for page in self.pages:
                w(f"k{page} = a{ahead}_{page}; v{page} = k{page}")
            for part in range(2):
                if 2 * ahead + part < plan.entries - 1:
                    with w.block(f"if step + {ahead} < end:"):
                        self.codec.copy(w, bool(part), "vk"[1 - part], f"sm + {(2 * ahead + part) * plan.entry_bytes}")
                    w("P.cp_commit()")
        # of the next keys to be copied
        self._load_ids("k", f"step + {plan.entries // 2}")
        w("P.pdl_wait()")

    def _copy_ahead(self, half: int) -> None:
        """What comes ``entries - 1`` halves later, to where the half before was read."""
        item = half + self.plan.entries - 1
        self._copy(bool(item % 2), f"step + {item // 2}", "previous")

    def _turn(self) -> None:
        plan = self.plan
        self.w(f"""
            previous = current; current = i32(current + {plan.entry_bytes})
            if current == sm + {plan.entries * plan.entry_bytes}:
                current = i32(sm)
        """)

    def _done(self, name: str, count: int) -> None:
        if self.plan.warpgroup:
            for index in range(count):
                self.w(f"{name}{index} = F.wgmma_done({name}{index})")

    # ---- queries
    def _load_queries(self) -> None:
        """To shared memory in the order of B: [pair of steps of k][column][q] 16 bytes."""
        w, plan = self.w, self.plan
        w("""
            rows = i32(tokens * group); heads = i32(kv_heads * group)
            queries = query + (i64(sequence) * row_tokens * heads + head * group) * 512 + lane * 16
        """)
        for j in range(2 * plan.tiles):
            w(f"""
                column = i32(P.i_min(u32(warp + {4 * j}), u32(rows - 1))); token = i32(P.u_div(u32(column), u32(group)))
                raw{j} = P.ldg4(queries + i64(token * heads + column - token * group) * 512)
            """)
        self.codec.place_queries(w)
        for j in range(2 * plan.tiles):
            self.codec.store_query(w, j)
        if plan.warpgroup:
            w("P.fence_async()")
        w(f"qa = i32(sm + {plan.queries} + g * 64 + q * 16)")

    # ---- softmax
    def _mask(self) -> None:
        w, plan = self.w, self.plan
        with w.block(f"if (step + 1) * {64 * plan.step_pages} > length - tokens + 1:"):
            w(f"token = i32(step * {64 * plan.step_pages} + warp * 16 + g)")
            for tile in self.tiles:
                for c in range(2):
                    w(f"z{c} = i32(length - tokens + i32(P.u_div(u32({8 * tile + c} + 2 * q), u32(group))))")
                    w(f"z{c} = i32(P.i_min(u32(z{c}), u32(length - 1)))")
                for page in self.pages:
                    w(f"t{page}_{tile} = F.masked_tile(s{page}[{tile}], i32(token + {64 * page}), z0, z1)")
            for page in self.pages:
                w(f"s{page} = ({''.join(f't{page}_{tile}, ' for tile in self.tiles)})")

    def _probabilities(self, packed: bool) -> None:
        """``y``: sums over a lane's tokens; P to shared memory, in 8 x 8 matrices [pair of blocks][tile][4]."""
        w, codec = self.w, self.codec
        for tile in self.tiles:
            # not kept: registers are dearer
            w("; ".join(f"n{c} = f32({codec.lift}) - m{tile}_{c} * exponent" for c in range(2)))
            for page in self.pages:
                w(f"p = F.exp2_tile(s{page}[{tile}], exponent, n0, n1)")
                for c in range(2):
                    w(f"y{tile}_{c} {'+' if page else ''}= p[{c}] + p[{c + 2}]")
                tiles, warpgroup = self.plan.tiles, self.plan.warpgroup
                start = self.plan.probabilities + 1024 * tiles * page + (128 if warpgroup else 512) * tile
                for row in range(2):
                    w(f"x = P.{codec.pack}(p[{2 * row}], p[{2 * row + 1}])")
                    place = start + row * 128 * (tiles if warpgroup else 1)
                    w(f"P.sts1(u32(pa + {place}), {'P.movmatrix(x)' if warpgroup else 'x'})")
                    if packed:
                        w(f"most = P.{codec.most}(most, x)")
        if self.plan.warpgroup:
            w("P.fence_async()")

    def _soften(self) -> None:
        w = self.w
        limit = self.codec.power_bits(self.codec.lift + HEADROOM)
        for tile in self.tiles:
            w(f"y{tile}_0 = f32(0); y{tile}_1 = f32(0)")
        w("over = u32(1)")
        with w.block("if fresh == 0:"):
            w("most = u32(0)")
            self._probabilities(packed=True)
            w(f"""
                over = u32(0)
                if P.u_max(u32(most & 0xFFFF), u32(most >> 16)) > u32({limit}):
                    over = u32(1)
            """)
        with w.block("else:"):
            self._leave_maxima()

    def _leave_maxima(self) -> None:
        w, at = self.w, self.plan.statistics
        for tile in self.tiles:
            for c in range(2):
                x = f"x{c}"
                found = [f"s{page}[{tile}][{c + 2 * row}]" for page in self.pages for row in range(2)]
                w(f"{x} = {found[0]}")
                for other in found[1:]:
                    w(f"{x} = P.fmaxf({x}, {other})")
                for offset in (4, 8, 16):
                    w(f"{x} = P.fmaxf({x}, P.shfl_xor_f({x}, {offset}))")
            w(f"if g == 0:\n    P.sts_f2(u32(sm + {at + tile * 32} + warp * {32 * self.plan.tiles} + q * 8), x0, x1)")

    def _rebase(self) -> None:
        """The maxima so far become the references; then once more the probabilities."""
        w, plan = self.w, self.plan
        with w.block("if fresh == 0:"):
            self._leave_maxima()
            w("P.bar_sync()")
        for tile in self.tiles:
            w(f"x0 = m{tile}_0; x1 = m{tile}_1")
            for warp in range(4):
                at = plan.statistics + (warp * plan.tiles + tile) * 32
                w(f"z = P.lds_f2(u32(sm + {at} + q * 8)); x0 = P.fmaxf(x0, z[0]); x1 = P.fmaxf(x1, z[1])")
            for c in range(2):
                w(f"""
                    r{tile}_{c} = P.ex2((m{tile}_{c} - x{c}) * exponent); m{tile}_{c} = x{c}
                    l{tile}_{c} *= r{tile}_{c}
                """)
        w(f"r = ({''.join(f'(r{tile}_0, r{tile}_1), ' for tile in self.tiles)})")
        for i in range(4):
            w(f"o{i} = F.scaled_columns(o{i}, r)")
        self._probabilities(packed=False)
        w("P.bar_sync()")

    # ---- results
    def _store(self) -> None:
        w, plan = self.w, self.plan
        w(f"place = i64(slot * kv_heads + head) * {plan.tiles}")
        for i in range(4):
            for tile in self.tiles:
                target = f"partial + place * 8192 + ({tile * 16 + i} + warp * 4) * 512 + lane * 16"
                values = ", ".join(f"o{i}[{tile}][{k}] * f32({2.0**self.codec.unscale})" for k in range(4))
                w(f"P.stg_f4({target}, {values})")
        for tile in self.tiles:
            w.warp_sum(f"l{tile}_0", f"l{tile}_1", offsets=(4, 8, 16))
        with w.block("if g == 0:"):
            for tile in self.tiles:
                at = plan.statistics + tile * 32
                w(f"P.sts_f2(u32(sm + {at} + warp * {32 * plan.tiles} + q * 8), l{tile}_0, l{tile}_1)")
        w("P.bar_sync()")
        with w.block("if warp + g == 0:"):
            for tile in self.tiles:
                for warp in range(4):
                    at = plan.statistics + (warp * plan.tiles + tile) * 32
                    w(f"u{warp} = P.lds_f2(u32(sm + {at} + q * 8))")
                sums = [" + ".join(f"u{warp}[{c}]" for warp in range(4)) for c in range(2)]
                target = f"statistics + (place + {tile}) * 64 + q * 16"
                w(f"P.stg_f4({target}, m{tile}_0, {sums[0]}, m{tile}_1, {sums[1]})")


def source(*arguments: Any) -> str:
    return Paged(PagedPlan(*arguments)).source()


def waits(*arguments: Any) -> dict[str, int]:
    """Groups of copies that may be under way when what was asked for first is needed."""
    return {"WAIT": PagedPlan(*arguments).entries - 2}


def make(*arguments: Any) -> Any:
    names = {name: P.cp_wait(groups) for name, groups in waits(*arguments).items()}
    return P.function_of(source(*arguments), "kernel", P=P, F=F, **names)
