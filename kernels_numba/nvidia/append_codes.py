"""Quantising one head of 256 numbers in a warp, and where its codes and scales go in a page.

Lane L holds ``x0`` to ``x7``, dimensions 8 L to 8 L + 7, as bfloat16 numbers. The rules of the formats are those of
``kernels_numba.kv.encode`` to the bit, the order of the bytes that of ``kernels_numba.kv.order``:

* ``nvfp4``: a scale E4M3(largest / 6) of 16 dimensions, which are those of two lanes, and codes E2M1(x / scale). A
  scale of zero has codes of zero.
* ``fp8``: a scale float16(largest / 448) of the head, codes E4M3(x * (1 / scale)).
* ``int8``: a scale float16(largest / 127) of 64 dimensions, codes round(x * (1 / scale)).

NaN counts as zero and infinity as the largest bfloat16 of its sign, so no code and no scale is ever NaN.

``token`` is the place in the page, ``run`` the address of the head run there. Codes are scattered as ``ptx.dq8`` wants
them. Everything of a token is whole 16-bit units, or bytes, so nothing is read in order to be written.
"""

from __future__ import annotations

from kernels_numba.nvidia.text import Source

EACH = 8
"""Dimensions of a lane."""
HEAD_DIM = 32 * EACH
_SIGN = "u32(0x80000000)"


def quantise(w: Source, form: str) -> None:
    """``scale``: its bits, in all lanes that share it; ``c0`` to ``c7``: codes, of nvfp4 without their signs."""
    for i in range(EACH):
        w(f"x{i} = P.finite(x{i})")
    w("largest = abs(x0)")
    for i in range(1, EACH):
        w(f"largest = P.fmaxf(largest, abs(x{i}))")
    for offset in {"nvfp4": (1,), "int8": (1, 2, 4), "fp8": (1, 2, 4, 8, 16)}[form]:
        w(f"largest = P.fmaxf(largest, P.shfl_xor_f(largest, {offset}))")
    if form == "nvfp4":
        w("scale = P.e4m3_code(P.div_rn(largest, f32(6))); step = P.h2_lo_f(P.u_shl(scale, u32(7))) * f32(256)")
        w("live = u32(0xFFFFFFFF)\nif scale == u32(0):\n    live = u32(0)")
        for i in range(EACH):
            w(f"c{i} = P.e2m1_code(x{i}, step)")
        return
    w(f"""
        ratio = P.fminf(P.div_rn(largest, f32({127 if form == "int8" else 448})), f32(65504))
        scale = P.h2_pack(ratio, f32(0)); inverse = f32(0)
        if scale != u32(0):
            inverse = P.div_rn(f32(1), P.h2_lo_f(scale))
    """)
    for i in range(EACH):
        if form == "int8":
            w(f"c{i} = P.u_and(P.int8_code(P.mul_rn(x{i}, inverse)), u32(255))")
        else:
            w(f"y = P.mul_rn(x{i}, inverse)")
            w(f"c{i} = P.u_or(P.e4m3_code(y), P.u_shr(P.u_and(P.f_bits(y), {_SIGN}), u32(24)))")


def store_key(w: Source, form: str, scales: int) -> None:
    """``scales``: offset of the scales of the keys in the run."""
    if form == "nvfp4":
        _store_nvfp4_key(w, scales)
        return
    w(f"P.stg2(run + token * {HEAD_DIM} + lane * {EACH}, {_bytes(range(4))}, {_bytes(range(4, 8))})")
    if form == "int8":
        with w.block("if lane & 7 == 0:"):
            w(f"P.stg_u16(run + {scales} + token * 8 + (lane >> 3) * 2, scale)")
    else:
        with w.block("if lane == 0:"):
            w(f"P.stg_u16(run + {scales} + token * 2, scale)")


def store_value(w: Source, form: str, codes: int, scales: int) -> None:
    """``codes``, ``scales``: offsets of those of the values in the run."""
    # dimension = 64 slice + 16 i + 8 rh + g of lane = 8 slice + 2 i + rh; token = 16 block + 8 hi + 2 q + lohi
    w("""
        slice = i32(lane >> 3); i = i32(lane >> 1 & 3); rh = i32(lane & 1)
        block = i32(token >> 4); hi = i32(token >> 3 & 1); q = i32(token >> 1 & 3); lohi = i32(token & 1)
    """)
    if form == "nvfp4":
        _store_nvfp4_value(w, codes, scales)
        return
    w(f"place = run + {codes} + block * 4096 + slice * 1024 + (i >> 1) * 512 + q * 16")
    w("place += (i & 1) * 8 + hi * 4 + rh * 2 + lohi")
    for g in range(EACH):
        w(f"P.stg_u8(place + {64 * g}, c{g})")
    if form == "int8":
        with w.block("if lane & 7 == 0:"):
            w(f"P.stg_u16(run + {scales} + slice * 128 + token * 2, scale)")
    else:
        with w.block("if lane == 0:"):
            w(f"P.stg_u16(run + {scales} + token * 2, scale)")


def _bytes(codes: range) -> str:
    parts = [f"P.u_shl(c{code}, u32({8 * place}))" for place, code in enumerate(codes)]
    return f"P.u_or(P.u_or({parts[0]}, {parts[1]}), P.u_or({parts[2]}, {parts[3]}))"


def _store_nvfp4_key(w: Source, scales: int) -> None:
    """A lane has the fours q = 2 (lane & 1) and the next of group lane >> 1, half of two words each."""
    for k in range(2):
        c, b = ([f"{name}{4 * k + j}" for j in range(4)] for name in ("c", "x"))
        w(f"""
            m = P.u_or(P.u_shl({c[0]}, u32(9)), P.u_shl({c[1]}, u32(25)))
            m = P.u_or(m, P.u_or(P.u_shl({c[2]}, u32(1)), P.u_shl({c[3]}, u32(17))))
            s = P.u_or(P.u_shr({_sign(b[0])}, u32(16)), {_sign(b[1])})
            s = P.u_or(s, P.u_or(P.u_shr({_sign(b[2])}, u32(24)), P.u_shr({_sign(b[3])}, u32(8))))
            if lane & 2:
                m = P.u_shl(m, u32(3)); s = P.u_shr(s, u32(7))
            w{k} = P.u_and(P.u_or(m, s), live); w{k} = P.u_or(w{k}, P.shfl_xor(w{k}, 2))
        """)
    w(f"""
        odd = i32(lane >> 1 & 1); word = w0; pair = i32(lane >> 2)
        if odd:
            word = w1
        place = run + (token >> 4) * 2048 + (pair >> 2) * 1024 + (token & 15) * 64
        P.stg1(place + (2 * (lane & 1) + odd) * 16 + (pair & 3) * 4, word)
        other = P.shfl_xor(scale, 2)
        if lane & 3 == 0:
            P.stg_u16(run + {scales} + token * 16 + pair * 2, P.u_or(scale, P.u_shl(other, u32(7))))
    """)


def _store_nvfp4_value(w: Source, codes: int, scales: int) -> None:
    """A 16-bit unit has the codes of i = 0..3, which lanes 2 i apart hold: each puts its own in place for all 8 g,
    two units a word, and the four lanes add them up so that each ends with one of the words."""
    w("magnitudes = u32(9); signs = u32(15)")
    for i, (magnitude, sign) in enumerate(((1, 7), (12, 8), (4, 0)), 1):
        w(f"if i == {i}:\n    magnitudes = u32({magnitude}); signs = u32({sign})")
    for j in range(4):
        low, high = 2 * j, 2 * j + 1
        w(f"""
            m = P.u_shl(P.u_or(c{low}, P.u_shl(c{high}, u32(16))), magnitudes)
            s = P.u_or(P.u_shr({_sign(f"x{low}")}, u32(31)), P.u_shr({_sign(f"x{high}")}, u32(15)))
            w{j} = P.u_and(P.u_or(m, P.u_shl(s, signs)), live)
        """)
    w(f"""
        mine0 = w0; mine1 = w1; others0 = w2; others1 = w3
        if i & 2:
            mine0 = w2; mine1 = w3; others0 = w0; others1 = w1
        mine0 = P.u_or(mine0, P.shfl_xor(others0, 4)); mine1 = P.u_or(mine1, P.shfl_xor(others1, 4))
        word = mine0; others0 = mine1
        if i & 1:
            word = mine1; others0 = mine0
        word = P.u_or(word, P.shfl_xor(others0, 2))
        place = run + {codes} + block * 2048 + slice * 512 + (8 * i + q) * 16 + (2 * hi + rh) * 4 + lohi * 2
        P.stg_u16(place, word); P.stg_u16(place + 64, P.u_shr(word, u32(16)))
        other = P.shfl_xor(scale, 2)
        if lane & 3 == 0:
            place = run + {scales} + block * 256 + slice * 64 + q * 16 + (2 * hi + (i >> 1)) * 4 + lohi * 2
            P.stg_u16(place, P.u_or(scale, P.u_shl(other, u32(7))))
    """)


def _sign(x: str) -> str:
    return f"P.u_and(P.f_bits({x}), {_SIGN})"
