"""What the codecs of ``attention_paged`` have in common: copies into the ring, queries as B of the MMA, products.

``key bytes = codes | scales`` and ``value bytes = codes | scales`` of one head of a page are contiguous in the cache;
the orders of codes and scales are those of ``kernels_numba.kv.order``.
"""

from __future__ import annotations

from typing import ClassVar

from kernels_numba.nvidia.attention_decode_plan import PagedPlan
from kernels_numba.nvidia.text import Source

THREADS = 128


class CodecTiles:
    """What the codecs have in common: keys and values that are copied as they lie, probabilities in float16."""

    pack: ClassVar[str] = "h2_pack"
    most: ClassVar[str] = "h2_max"
    product: ClassVar[str] = "mma_f16_pair"
    lift: ClassVar[int]
    """Probabilities are stored times 2 ** lift, so that times a value's scale they neither vanish nor overflow."""
    unscale: int
    """Sums of products, times 2 ** unscale, are in the unit of the probabilities' sums."""
    scrubs: ClassVar[bool] = False

    def __init__(self, plan: PagedPlan) -> None:
        self.plan = plan

    def power_bits(self, exponent: int) -> int:
        """Of 2 ** exponent in the type of the probabilities."""
        return (15 + exponent) << 10

    def prepare(self, w: Source) -> None:
        tiles = self.plan.tiles
        block = f"warp * {256 * tiles}" if self.plan.warpgroup else f"(warp >> 1) * {512 * tiles} + (warp & 1) * 256"
        w(f"pa = i32(sm + {block} + g * 16 + q * 4)")

    # ---- copies
    def copy(self, w: Source, values: bool, ids: str, entry: str) -> None:
        """The keys or values of the pages ``ids`` of a step to a ring entry, in the order in which they lie."""
        plan = self.plan
        size = plan.value_bytes if values else plan.key_bytes
        start = plan.key_bytes if values else 0
        w(f"target = i32({entry} + tid * 16)")
        for page in range(plan.step_pages):
            w(f"from{page} = origin + i64({ids}{page}) * page_bytes + (tid * 16 + {start - page * size})")
        whole, chunk = size * plan.step_pages, 16 * THREADS
        for at in range(0, whole, chunk):
            page = at // size
            line = f"P.cp_async16(u32(target + {at}), {{}} + {at})"
            if at + chunk > whole:
                w(f"if tid < {(whole - at) // 16}:\n    {line.format(f'from{page}')}")
            elif (at + chunk - 1) // size != page:
                w(f"both = from{page}\nif tid >= {(size * (page + 1) - at) // 16}:\n    both = from{page + 1}")
                w(line.format("both"))
            else:
                w(line.format(f"from{page}"))

    # ---- queries
    def chunk(self, k4: str) -> tuple[str, str]:
        """Step of k and q of the 4 dimensions from 4 ``k4``."""
        return f"({k4} >> 2)", f"({k4} & 3)"

    order: ClassVar[tuple[int, int, int, int]] = (0, 1, 2, 3)
    """Of the 4 dimensions in B: b0's two, then b1's."""

    def place_queries(self, w: Source) -> None:
        for i in range(2):
            step, q = self.chunk(f"i32(2 * lane + {i})")
            columns, tiles = 8 * self.plan.tiles, self.plan.tiles
            if self.plan.warpgroup:
                w(f"to{i} = i32({step} * {256 * tiles} + warp * 16 + {q} * 4 + sm + {self.plan.queries})")
                continue
            w(f"at = i32({step}); to{i} = i32(((at >> 1) * {columns} + warp) * 64 + {q} * 16 + (at & 1) * 8)")
            w(f"to{i} = i32(to{i} + sm + {self.plan.queries})")

    def store_query(self, w: Source, j: int) -> None:
        """8 dimensions of column ``warp + 4 j`` from ``raw{j}`` to shared memory."""
        for i in range(2):
            values = [f"P.bf2_{('lo', 'hi')[d % 2]}_f(raw{j}[{2 * i + d // 2}])" for d in self.order]
            words = [f"P.{self.pack}({values[2 * n]}, {values[2 * n + 1]})" for n in range(2)]
            if self.plan.warpgroup:
                at = j // 2 * 128 + j % 2 * 64
                for half in range(2):
                    w(f"P.sts1(u32(to{i} + {at + 128 * self.plan.tiles * half}), {words[half]})")
                continue
            w(f"P.sts2(u32(to{i} + {j * 256}), {', '.join(words)})")

    def queries(self, w: Source, pair: int) -> None:
        """``b``: B of two steps of k, where products do not take it from shared memory."""
        plan = self.plan
        if plan.warpgroup:
            return
        tiles = ", ".join(f"P.lds4(u32(qa + {(pair * plan.tiles + tile) * 512}))" for tile in range(plan.tiles))
        w(f"b = ({tiles},)")

    def multiply(self, w: Source, sums: str, a: str, b: str, place: int) -> None:
        """``sums`` += A B; for a warpgroup B lies ``place`` bytes behind the descriptor ``b``."""
        if self.plan.warpgroup:
            # more of them under way hold up all else: measured on an H200
            w(f"{sums} = F.wgmma_f16_pair({a}, {b} + {place // 16}, {sums}); P.wgmma_wait_1()")
        else:
            w(f"{sums} = F.{self.product}({a}, {b}, {sums})")

    # ---- products: of each page's keys with the queries, ``s{page}``, and of a pair of token blocks with ``b``
    def score(self, w: Source) -> None:
        raise NotImplementedError

    def mix(self, w: Source, pair: int) -> None:
        raise NotImplementedError

    def scrub(self, w: Source) -> None:
        """Overwrite what values past ``length`` have that may be other than finite."""
