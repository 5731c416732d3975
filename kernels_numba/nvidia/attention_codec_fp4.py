"""NVFP4 keys with queries rounded to NVFP4, multiplied by block-scaled FP4 tensor cores (sm_120a). Never run there.

Keys stay codes and scales: they are neither decoded nor scaled, and a page takes a quarter of the products. Queries are
rounded by the rule of ``kernels_numba.kv.encode`` when a block begins. Values go the way of ``attention_codecs``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_numba.nvidia.attention_codecs import Nvfp4
from kernels_numba.nvidia.attention_decode_plan import PagedPlan
from kernels_numba.nvidia.text import Source


@dataclass(frozen=True)
class Fp4Plan(PagedPlan):
    """A variant whose queries are codes, then scales."""

    @property
    def query_scales(self) -> int:
        """``[column][step of k] 4 bytes``."""
        return self.queries + 1024 * self.tiles

    @property
    def probabilities(self) -> int:
        return self.query_scales + 128 * self.tiles


class Nvfp4Scores(Nvfp4):
    """Lane 4g + q scores k of the half q >> 1 of the head; what a lane of B has of a column is made by one lane."""

    plan: Fp4Plan

    def prepare(self, w: Source) -> None:
        super().prepare(w)
        # halves of a four begin with different words, rows with different scales: so no lanes meet in a bank
        w("""
            h = i32(q >> 1); row = i32(q & 1)
            ka0 = i32(warp * 2048 + h * 1024 + g * 64 + ((2 * row) ^ h) * 16); ka1 = i32(ka0 ^ 16)
            kz0 = i32(8192 + warp * 256 + (g + 8 * row) * 16 + h * 4 + row * 8); kz1 = i32(kz0 ^ 8)
            even = u32(0x5140); odd = u32(0x7362)
            if row > 0:
                even = u32(0x1504); odd = u32(0x3726)
        """)

    # ---- queries
    def place_queries(self, w: Source) -> None:
        plan = self.plan
        w(f"""
            h = i32(lane >> 4); k = i32((lane >> 2) & 3); odd_group = i32((lane >> 1) & 1)
            to0 = i32(((k >> 1) * {8 * plan.tiles} + warp) * 64 + (2 * h + (lane & 1)) * 16)
            to0 = i32(to0 + (k & 1) * 8 + odd_group * 4 + sm + {plan.queries})
            to1 = i32(warp * 16 + k * 4 + sm + {plan.query_scales}); place = u32(8 * (2 * odd_group + h))
            qz = i32(sm + {plan.query_scales} + lane * 4)
        """)

    def store_query(self, w: Source, j: int) -> None:
        """A lane has half a group: one word. Codes of a scale of zero may be anything."""
        w(f"""
            x = F4.query_values(raw{j}, h); largest = P.fmaxf(x[8], P.shfl_xor_f(x[8], 1))
            scale = P.e4m3_code(P.div_rn(largest, f32(6)))
            codes = F4.query_codes(x, P.h2_lo_f(P.u_shl(scale, u32(7))) * f32(256))
            P.sts1(u32(to0 + {256 * j}), codes)
        """)
        w(f"""
            scale = P.u_shl(scale, place); scale = P.u_or(scale, P.shfl_xor(scale, 2))
            scale = P.u_or(scale, P.shfl_xor(scale, 16))
            if lane & 19 == 0:
                P.sts1(u32(to1 + {64 * j}), scale)
        """)

    # ---- scores
    def score(self, w: Source) -> None:
        plan = self.plan
        z = ", ".join(f"P.lds1(u32(qz + {128 * tile}))" for tile in range(plan.tiles))
        w(f"z = ({z},)")
        for page in range(plan.step_pages):
            at = page * plan.key_bytes
            w(f"s{page} = none")
            w(f"wa{page} = P.lds4(u32(current + ka0 + {at})); wb{page} = P.lds4(u32(current + ka1 + {at}))")
            w(f"va{page} = P.lds4(u32(current + ka0 + {at + 512})); vb{page} = P.lds4(u32(current + ka1 + {at + 512}))")
            w(f"y0 = F4.spread_scales(P.lds1(u32(current + kz0 + {at})))")
            w(f"y1 = F4.spread_scales(P.lds1(u32(current + kz1 + {at})))")
            w(f"f{page} = (P.prmt(y0, y1, even), P.prmt(y0, y1, odd))")
        for pair, product in enumerate(("first", "second")):
            self.queries(w, pair)
            for page in range(plan.step_pages):
                words = [f"{name}{page}[{2 * pair + step}]" for step in range(2) for name in ("wa", "wb", "va", "vb")]
                w(f"a = F4.nvfp4_codes({', '.join(words)})")
                w(f"s{page} = F4.mma_nvfp4_{product}(a, b, s{page}, f{page}, z)")
