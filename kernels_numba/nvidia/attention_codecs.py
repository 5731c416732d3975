"""How keys and values of each codec get from the ring of ``attention_paged`` into the MMA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from kernels_numba.nvidia.attention_codec import THREADS, CodecTiles
from kernels_numba.nvidia.attention_decode_plan import PagedPlan
from kernels_numba.nvidia.text import Source

_SIXTEENTHS = 0x2C002C00  # 2^-4 twice, for keys that are larger than halves


class _Nvfp4Values(CodecTiles):
    """Scales of 16 dimensions. With few columns the probabilities are scaled, with many the values."""

    lift = 11

    def __init__(self, plan: PagedPlan) -> None:
        super().__init__(plan)
        self.scales_values = plan.tiles > 3 or plan.warpgroup
        # codes are read times 2^-14, scales times 2^-8 or, lifted, 2^7
        self.unscale = 7 if self.scales_values else 22

    def mix(self, w: Source, pair: int) -> None:
        block, page = 2 * (pair % 2), pair // 2
        base, lifted = page * self.plan.value_bytes, "_lifted" * self.scales_values
        codes = f"current + {base + block * 2048} + warp * 512 + lane * 16"
        scales = f"current + {base + 8192 + block * 256} + warp * 64 + q * 16"
        w(f"v = F.nvfp4_values(P.lds4(u32({codes})), P.lds4(u32({codes} + 2048)))")
        w(f"y = F.nvfp4_value_scales{lifted}(P.lds4(u32({scales})), P.lds4(u32({scales} + 256)))")
        for i in range(4):
            if self.plan.warpgroup:
                a, b = f"F.scaled_a(v[{i}], y[{i}])", "pd"
            elif self.scales_values:
                a, b = f"F.scaled_a(v[{i}], y[{i}])", "b"
            else:
                a, b = f"v[{i}]", f"F.scaled_b(b, y[{i}])"
            self.multiply(w, f"o{i}", a, b, pair * 512 * self.plan.tiles)


class Nvfp4(_Nvfp4Values):
    def score(self, w: Source) -> None:
        pages, plan = range(self.plan.step_pages), self.plan
        w("codes = i32(current + warp * 2048 + lane * 16); scales = i32(current + 8192 + warp * 256 + g * 16)")
        w("; ".join(f"s{page} = none" for page in pages))
        for pair in range(8):
            part, i = divmod(pair, 4)
            half = ("low", "high")[pair % 2]
            self.queries(w, pair)
            for page in pages:
                if i == 0:
                    at = page * plan.key_bytes + part * 1024
                    w(f"wa{page} = P.lds4(u32(codes + {at})); wb{page} = P.lds4(u32(codes + {at + 512}))")
                    at = page * plan.key_bytes + part * 8
                    w(f"za{page} = P.lds2(u32(scales + {at})); zb{page} = P.lds2(u32(scales + {at + 128}))")
                if pair % 2 == 0:
                    w(f"fa{page} = F.key_scales(za{page}[{i // 2}]); fb{page} = F.key_scales(zb{page}[{i // 2}])")
                factors = f"fa{page}[0], fa{page}[1], fb{page}[0], fb{page}[1]"
                w(f"a = F.nvfp4_keys_{half}(wa{page}[{i}], wb{page}[{i}], {factors})")
                self.multiply(w, f"s{page}", "a", "qd" if plan.warpgroup else "b", pair * 512 * plan.tiles)


class _ByteKeys(CodecTiles):
    """Rows of 256 bytes, of which neighbours would meet in the same banks: odd rows are copied with 64s swapped."""

    order = (0, 2, 1, 3)
    decode_keys: ClassVar[str]

    def prepare(self, w: Source) -> None:
        super().prepare(w)
        w("""
            turned = i32(tid * 16 ^ ((tid >> 4) & 1) * 64)
            ka0 = i32(warp * 4096 + g * 256 + ((q * 16) ^ ((g & 1) * 64))); ka1 = i32(ka0 ^ 64)
        """)

    def copy(self, w: Source, values: bool, ids: str, entry: str) -> None:
        if values:
            super().copy(w, values, ids, entry)
            return
        for page in range(self.plan.step_pages):
            w(f"target = i32({entry} + {page * self.plan.key_bytes} + turned); tail = i32({entry} + tid * 16)")
            w(f"from0 = origin + i64({ids}{page}) * page_bytes + tid * 16")
            for at in range(0, 16384, 16 * THREADS):
                w(f"P.cp_async16(u32(target + {at}), from0 + {at})")
            scales = (self.plan.key_bytes - 16384) // 16
            place = f"u32(tail + {page * self.plan.key_bytes + 16384})"
            w(f"if tid < {scales}:\n    P.cp_async16({place}, from0 + 16384)")

    def chunk(self, k4: str) -> tuple[str, str]:
        return f"(({k4} >> 4) * 4 + ({k4} & 3))", f"(({k4} >> 2) & 3)"

    def _words(self, w: Source, page: int, slice64: int) -> None:
        at = f"current + ka{slice64 % 2} + {page * self.plan.key_bytes + slice64 // 2 * 128}"
        w(f"wa{page} = P.lds4(u32({at})); wb{page} = P.lds4(u32({at} + 2048))")

    def _fragment(self, w: Source, page: int, pair: int) -> None:
        i = 2 * (pair % 2)
        words = f"wa{page}[{i}], wb{page}[{i}], wa{page}[{i + 1}], wb{page}[{i + 1}]"
        w(f"a = F.{self.decode_keys}({words})")


class _Fp8Keys(_ByteKeys):
    """One scale for a token."""

    decode_keys = "fp8_keys"

    def score(self, w: Source) -> None:
        pages = range(self.plan.step_pages)
        for page in pages:
            w(f"s{page} = none")
        for pair in range(8):
            self.queries(w, pair)
            for page in pages:
                if pair % 2 == 0:
                    self._words(w, page, pair // 2)
                self._fragment(w, page, pair)
                w(f"s{page} = F.{self.product}(a, b, s{page})")
        for page in pages:
            at = f"current + {page * self.plan.key_bytes + 16384} + warp * 32 + g * 2"
            w(f"x0 = P.h2_lo_f(P.lds_u16(u32({at}))); x1 = P.h2_lo_f(P.lds_u16(u32({at} + 16)))")
            w(f"s{page} = F.scaled_rows(s{page}, x0, x1)")


class _ByteValues(CodecTiles):
    """Scales are folded into the probabilities: those of a token, or of its 64 dimensions that a warp takes."""

    lift = 4
    scrubs = True
    decode_values: ClassVar[str]
    scales_by_slice: ClassVar[bool]

    def mix(self, w: Source, pair: int) -> None:
        block, page = 2 * (pair % 2), pair // 2
        base = page * self.plan.value_bytes
        scales = f"current + {base + 16384 + block * 32}{' + warp * 128' if self.scales_by_slice else ''} + q * 4"
        w(f"y = ({', '.join(f'P.lds1(u32({scales} + {at}))' for at in (0, 16, 32, 48))})")
        w("b = F.scaled_b(b, y)")
        for half in range(2):
            codes = f"current + {base + block * 4096 + half * 512} + warp * 1024 + lane * 16"
            w(f"v = F.{self.decode_values}(P.lds4(u32({codes})), P.lds4(u32({codes} + 4096)))")
            for i in range(2):
                w(f"o{2 * half + i} = F.{self.product}(v[{i}], b, o{2 * half + i})")

    def scrub(self, w: Source) -> None:
        plan = self.plan
        for page in range(plan.step_pages):
            base = page * plan.value_bytes + 16384
            for row in range(4 if self.scales_by_slice else 1):
                with w.block(f"if tid < 64 and (step * {plan.step_pages} + {page}) * 64 + tid >= length:"):
                    w(f"P.sts_u16(u32(current + {base + row * 128} + tid * 2), u32(0))")


class Fp8(_ByteValues, _Fp8Keys):
    unscale = 8
    decode_values = "fp8_values"
    scales_by_slice = False


class Int8(_ByteValues, _ByteKeys):
    """Scales of 64 dimensions, which for keys are those of one product of every two.

    Sums of such products are scaled, all in float32; where those would take too many registers, the codes are instead,
    rounded to half once.
    """

    unscale = 0
    decode_keys = "int8_keys"
    decode_values = "int8_values"
    scales_by_slice = True

    def score(self, w: Source) -> None:
        pages = range(self.plan.step_pages)
        for page in pages:
            at = f"current + {page * self.plan.key_bytes + 16384} + warp * 128 + g * 8"
            w(f"s{page} = none; za{page} = P.lds2(u32({at})); zb{page} = P.lds2(u32({at} + 64))")
        for pair in range(8):
            self.queries(w, pair)
            for page in pages:
                word, part = pair // 4, ("lo", "hi")[pair // 2 % 2]
                if pair % 2 == 0:
                    self._words(w, page, pair // 2)
                    if self.plan.tiles > 3:
                        twice = (0x1010, 0x3232)[pair // 2 % 2]
                        for z in ("za", "zb"):
                            scale = f"P.prmt({z}{page}[{word}], u32(0), u32({twice}))"
                            w(f"{z}_{page} = P.h2_mul({scale}, u32({_SIXTEENTHS}))")
                self._fragment(w, page, pair)
                if self.plan.tiles > 3:
                    w(f"s{page} = F.{self.product}(F.scaled_a_rows(a, za_{page}, zb_{page}), b, s{page})")
                    continue
                w(f"d{page} = F.{self.product}(a, b, {'none' if pair % 2 == 0 else f'd{page}'})")
                if pair % 2:
                    x0, x1 = (f"P.h2_{part}_f({z}{page}[{word}]) * f32(0.0625)" for z in ("za", "zb"))
                    w(f"s{page} = F.add_scaled_rows(s{page}, d{page}, {x0}, {x1})")


class K8V4(_Nvfp4Values, _Fp8Keys):
    pass


class Bfloat16(CodecTiles):
    """Rows of 512 bytes, 16-byte chunk c of row r at chunk ``c ^ turn(r)``.

    So neither 8 rows of one chunk (ldmatrix) nor 4 chunks of 2 neighbouring rows meet in a bank.
    """

    pack, most, product = "bf2_pack", "bf2_max", "mma_bf16_pair"
    lift, unscale = 11, 0
    scrubs = True

    def power_bits(self, exponent: int) -> int:
        return (127 + exponent) << 7

    def prepare(self, w: Source) -> None:
        super().prepare(w)
        w("""
            row = i32(warp & 3); turned = i32(row * 512 + (lane ^ ((row & 1) << 2 | row >> 1)) * 16)
            ka0 = i32(warp * 8192 + g * 512 + (q ^ (g >> 1)) * 16 + (g & 1) * 64)
            row = i32(lane & 7); turn = i32((row & 1) << 2 | row >> 1); row = i32(row + (lane >> 4) * 8)
            va = i32(row * 512 + warp * 128 + (((lane >> 3) & 1) ^ turn) * 16)
        """)

    def copy(self, w: Source, values: bool, ids: str, entry: str) -> None:
        for page in range(self.plan.step_pages):
            start = self.plan.key_bytes if values else 0
            w(f"target = i32({entry} + {page * 32768} + turned)")
            w(f"from0 = origin + i64({ids}{page}) * page_bytes + (tid * 16 + {start})")
            for j in range(16):
                place = f"target + {j * 2048}" if j % 2 == 0 else f"(target ^ 32) + {j * 2048}"
                w(f"P.cp_async16(u32({place}), from0 + {j * 2048})")

    def chunk(self, k4: str) -> tuple[str, str]:
        return f"(({k4} >> 3) * 2 + ({k4} & 1))", f"(({k4} >> 1) & 3)"

    def score(self, w: Source) -> None:
        pages = range(self.plan.step_pages)
        for page in pages:
            w(f"s{page} = none")
        for pair in range(8):
            self.queries(w, pair)
            for page in pages:
                at = f"current + (ka0 ^ {64 * (pair % 2)}) + {page * 32768 + pair // 2 * 128}"
                w(f"wa = P.lds4(u32({at})); wb = P.lds4(u32({at} + 4096))")
                w("a = (wa[0], wb[0], wa[1], wb[1], wa[2], wb[2], wa[3], wb[3])")
                w(f"s{page} = F.{self.product}(a, b, s{page})")

    def mix(self, w: Source, pair: int) -> None:
        for i in range(4):
            at = f"current + (va ^ {32 * i}) + {pair * 16384}"
            w(f"wa = P.ldsm4t(u32({at})); wb = P.ldsm4t(u32({at} + 8192))")
            w("a = (wa[0], wa[1], wa[2], wa[3], wb[0], wb[1], wb[2], wb[3])")
            w(f"o{i} = F.{self.product}(a, b, o{i})")

    def scrub(self, w: Source) -> None:
        tokens = 64 * self.plan.step_pages
        w(f"""
            for line in range(0, {tokens}, 4):
                if step * {tokens} + line + warp >= length:
                    P.sts4(u32(current + (line + warp) * 512 + lane * 16), u32(0), u32(0), u32(0), u32(0))
        """)


CODECS: dict[str, Callable[[PagedPlan], Any]] = {
    "nvfp4": Nvfp4,
    "fp8": Fp8,
    "int8": Int8,
    "k8v4": K8V4,
    "bf16": Bfloat16,
}
