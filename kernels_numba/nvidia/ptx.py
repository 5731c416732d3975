"""What kernels are written in: PTX instructions and 32-bit integer operations as numba intrinsics.

The only file with inline PTX. Two makers: ``asm`` of a PTX template with any number of results, and ``ir32`` of plain
LLVM operations on 32-bit integers, which numba would promote to 64 bits and which leave the optimiser free to fold.
Addresses are integers: int64 of global memory, 32 bits of shared memory. Instructions that a target lacks
(``griddepcontrol`` below sm_90) are dropped by ``compile.py``.

Kernels import their types from here too, never numba itself: this is the one place that prepares it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

if not hasattr(np, "row_stack"):  # gone in numpy 2.5; numba-cuda 0.30 still looks it up
    np.row_stack = np.vstack  # type: ignore[attr-defined,unused-ignore]

from llvmlite import ir  # type: ignore[import-untyped]
from numba import cuda as cuda
from numba.cuda import types as types
from numba.cuda.extending import intrinsic

f32, i32, i64, u32 = types.float32, types.int32, types.int64, types.uint32

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
TYPES = {"r": (u32, _INT), "i": (i32, _INT), "l": (i64, _LONG), "f": (f32, _FLOAT)}
"""numba's and LLVM's types by the letter of a signature: uint32, int32, int64 or float32."""

PURE, ORDERED, BARRIER = "pure", "ordered", "barrier"
"""May be moved and merged; keeps its place among its like; also holds loads and stores in place."""


def device_function(function: Callable[..., Any]) -> Any:
    """A function that kernels may call."""
    return cuda.jit(device=True)(function)


def function_of(source: str, name: str, **names: Any) -> Any:
    """The function ``name`` of generated source text, in which ``names`` are bound beside those of this module."""
    scope = {**globals(), **names}
    exec(compile(source, f"<{name}>", "exec"), scope)  # noqa: S102
    return scope[name]


def inline(
    builder: Any,
    template: str,
    results: str,
    arguments: str,
    values: Sequence[Any],
    effect: str = PURE,
    *,
    in_place: bool = False,
) -> list[Any]:
    """Emit a PTX template with LLVM ``values``; its LLVM results.

    ``in_place``: the last arguments, one for each result, are its registers before.
    """
    registers = {"i": "r"}
    outputs = ["=" + registers.get(letter, letter) for letter in results]
    inputs = [registers.get(letter, letter) for letter in arguments]
    if in_place:
        inputs[len(inputs) - len(results) :] = [str(index) for index in range(len(results))]
    constraints = ",".join(outputs + inputs + (["~{memory}"] if effect == BARRIER else []))
    returned = [TYPES[letter][1] for letter in results]
    llvm_type = {0: ir.VoidType(), 1: returned[0] if returned else None}.get(
        len(returned), ir.LiteralStructType(returned)
    )
    function = ir.FunctionType(llvm_type, [TYPES[letter][1] for letter in arguments])
    call = builder.call(ir.InlineAsm(function, template, constraints, side_effect=effect != PURE), values)
    if len(results) <= 1:
        return [call] * len(results)
    return [builder.extract_value(call, index) for index in range(len(results))]


def asm(template: str, results: str, arguments: str, effect: str = PURE) -> Any:
    """The intrinsic of a PTX template; ``results`` and ``arguments`` are letters of ``TYPES``."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        items = inline(builder, template, results, arguments, values, effect)
        if not results:
            return context.get_dummy_value()
        return items[0] if len(results) == 1 else context.make_tuple(builder, signature.return_type, items)

    numba_types = [TYPES[letter][0] for letter in results]
    if len(numba_types) <= 1:
        returns = numba_types[0] if numba_types else types.none
    elif len(set(results)) == 1:
        returns = types.UniTuple(numba_types[0], len(numba_types))
    else:
        returns = types.Tuple(numba_types)
    return _intrinsic(returns(*[TYPES[letter][0] for letter in arguments]), emit, len(arguments))


def ir32(build: Callable[..., Any], arguments: int, results: int = 1) -> Any:
    """The intrinsic of uint32 values; ``build(builder, *values)`` returns one value, or a list if there are several."""
    returns = u32 if results == 1 else types.UniTuple(u32, results)

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        built = build(builder, *values)
        return built if results == 1 else context.make_tuple(builder, signature.return_type, built)

    return _intrinsic(returns(*[u32] * arguments), emit, arguments)


def _intrinsic(signature: Any, emit: Any, arguments: int) -> Any:
    """numba looks at the arity of an intrinsic, so this makes a function of exactly so many parameters."""
    parameters = ", ".join(["context", *(f"value{index}" for index in range(arguments))])
    scope: dict[str, Any] = {"signature": signature, "emit": emit}
    exec(f"def function({parameters}):\n    return signature, emit", scope)  # noqa: S102
    return intrinsic(scope["function"])


def constant(value: int) -> Any:
    return ir.Constant(_INT, value & 0xFFFFFFFF)


# ---- 32-bit integers
u_and = ir32(lambda b, x, y: b.and_(x, y), 2)
u_or = ir32(lambda b, x, y: b.or_(x, y), 2)
u_xor = ir32(lambda b, x, y: b.xor(x, y), 2)
u_shl = ir32(lambda b, x, y: b.shl(x, y), 2)
u_shr = ir32(lambda b, x, y: b.lshr(x, y), 2)
u_add = ir32(lambda b, x, y: b.add(x, y), 2)
u_mul = ir32(lambda b, x, y: b.mul(x, y), 2)
u_div = ir32(lambda b, x, y: b.udiv(x, y), 2)  # // of numba is a 64-bit floor division
u_max = ir32(lambda b, x, y: b.select(b.icmp_unsigned(">", x, y), x, y), 2)
i_min = ir32(lambda b, x, y: b.select(b.icmp_signed("<", x, y), x, y), 2)
prmt = asm("prmt.b32 $0,$1,$2,$3;", "r", "rrr")
# whether x < y, of signed numbers; the first compiler does not unroll a loop that asks for it
below = asm("{.reg .pred p; setp.lt.s32 p,$1,$2; selp.u32 $0,1,0,p;}", "r", "ii", ORDERED)
no_unroll = asm(".pragma \\22nounroll\\22;", "", "", ORDERED)  # at the top of a loop, for the second compiler

# ---- special registers
tid_x = asm("mov.u32 $0,%tid.x;", "r", "")
ntid_x = asm("mov.u32 $0,%ntid.x;", "r", "")
cta_x = asm("mov.u32 $0,%ctaid.x;", "r", "")
cta_y = asm("mov.u32 $0,%ctaid.y;", "r", "")
cta_z = asm("mov.u32 $0,%ctaid.z;", "r", "")
ncta_x = asm("mov.u32 $0,%nctaid.x;", "r", "")
ncta_y = asm("mov.u32 $0,%nctaid.y;", "r", "")
ncta_z = asm("mov.u32 $0,%nctaid.z;", "r", "")
lane_id = asm("mov.u32 $0,%laneid;", "r", "")

# ---- global memory; "stream" is read once: past L1, whole lines into L2
ldg_stream4 = asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {$0,$1,$2,$3},[$4];", "rrrr", "l", ORDERED)
ldg_stream2 = asm("ld.global.nc.L1::no_allocate.v2.u32 {$0,$1},[$2];", "rr", "l", ORDERED)
ldg4 = asm("ld.global.v4.u32 {$0,$1,$2,$3},[$4];", "rrrr", "l", ORDERED)
ldg2 = asm("ld.global.v2.u32 {$0,$1},[$2];", "rr", "l", ORDERED)
ldg1 = asm("ld.global.u32 $0,[$1];", "r", "l", ORDERED)
ldg_i = asm("ld.global.u32 $0,[$1];", "i", "l", ORDERED)
ldg_l = asm("ld.global.u64 $0,[$1];", "l", "l", ORDERED)
ldg_u16 = asm("{.reg .u16 t; ld.global.u16 t,[$1]; cvt.u32.u16 $0,t;}", "r", "l", ORDERED)
ldg_u8 = asm("ld.global.u8 $0,[$1];", "r", "l", ORDERED)
ldg_f = asm("ld.global.f32 $0,[$1];", "f", "l", ORDERED)
ldg_f2 = asm("ld.global.v2.f32 {$0,$1},[$2];", "ff", "l", ORDERED)
ldg_f4 = asm("ld.global.v4.f32 {$0,$1,$2,$3},[$4];", "ffff", "l", ORDERED)
ldg_l2_f4 = asm("ld.global.cg.v4.f32 {$0,$1,$2,$3},[$4];", "ffff", "l", ORDERED)  # what another block wrote
ldg_l2_f = asm("ld.global.cg.f32 $0,[$1];", "f", "l", ORDERED)
ldg_l2_2 = asm("ld.global.cg.v2.u32 {$0,$1},[$2];", "rr", "l", ORDERED)
ldg_l2_u16 = asm("{.reg .u16 t; ld.global.cg.u16 t,[$1]; cvt.u32.u16 $0,t;}", "r", "l", ORDERED)
prefetch_l2 = asm("prefetch.global.L2 [$0];", "", "l", ORDERED)
stg1 = asm("st.global.u32 [$0],$1;", "", "lr", ORDERED)
stg2 = asm("st.global.v2.u32 [$0],{$1,$2};", "", "lrr", ORDERED)
stg4 = asm("st.global.v4.u32 [$0],{$1,$2,$3,$4};", "", "lrrrr", ORDERED)
stg_u16 = asm("{.reg .u16 t; cvt.u16.u32 t,$1; st.global.u16 [$0],t;}", "", "lr", ORDERED)
stg_u8 = asm("st.global.u8 [$0],$1;", "", "lr", ORDERED)
stg_f = asm("st.global.f32 [$0],$1;", "", "lf", ORDERED)
stg_f2 = asm("st.global.v2.f32 [$0],{$1,$2};", "", "lff", ORDERED)
stg_f4 = asm("st.global.v4.f32 [$0],{$1,$2,$3,$4};", "", "lffff", ORDERED)

# ---- shared memory
lds4 = asm("ld.shared.v4.u32 {$0,$1,$2,$3},[$4];", "rrrr", "r", ORDERED)
lds2 = asm("ld.shared.v2.u32 {$0,$1},[$2];", "rr", "r", ORDERED)
lds1 = asm("ld.shared.u32 $0,[$1];", "r", "r", ORDERED)
lds_l = asm("ld.shared.u64 $0,[$1];", "l", "r", ORDERED)
lds_u16 = asm("{.reg .u16 t; ld.shared.u16 t,[$1]; cvt.u32.u16 $0,t;}", "r", "r", ORDERED)
lds_f = asm("ld.shared.f32 $0,[$1];", "f", "r", ORDERED)
lds_f2 = asm("ld.shared.v2.f32 {$0,$1},[$2];", "ff", "r", ORDERED)
lds_f4 = asm("ld.shared.v4.f32 {$0,$1,$2,$3},[$4];", "ffff", "r", ORDERED)
sts4 = asm("st.shared.v4.u32 [$0],{$1,$2,$3,$4};", "", "rrrrr", ORDERED)
sts2 = asm("st.shared.v2.u32 [$0],{$1,$2};", "", "rrr", ORDERED)
sts1 = asm("st.shared.u32 [$0],$1;", "", "rr", ORDERED)
sts_l = asm("st.shared.u64 [$0],$1;", "", "rl", ORDERED)
sts_u16 = asm("{.reg .u16 t; cvt.u16.u32 t,$1; st.shared.u16 [$0],t;}", "", "rr", ORDERED)
sts_f = asm("st.shared.f32 [$0],$1;", "", "rf", ORDERED)
sts_f2 = asm("st.shared.v2.f32 [$0],{$1,$2};", "", "rff", ORDERED)
sts_f4 = asm("st.shared.v4.f32 [$0],{$1,$2,$3,$4};", "", "rffff", ORDERED)
ldsm4 = asm("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3},[$4];", "rrrr", "r", ORDERED)
ldsm4t = asm("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3},[$4];", "rrrr", "r", ORDERED)


@intrinsic
def smem_base(context: Any) -> Any:  # noqa: ARG001
    """Address of the dynamic shared memory."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        name = "dynamic_shared_memory"
        symbol = builder.module.globals.get(name)
        if symbol is None:
            symbol = ir.GlobalVariable(builder.module, ir.ArrayType(ir.IntType(8), 0), name, addrspace=3)
            symbol.linkage = "external"
            symbol.align = 128
        return builder.ptrtoint(symbol, _INT)

    return i32(), emit


# ---- barriers, asynchronous copies in groups, programmatic dependent launch (nothing below sm_90)
bar_sync = asm("bar.sync 0;", "", "", BARRIER)
# whether any thread of the block brings something other than 0
bar_or = asm("{.reg .pred p,q; setp.ne.u32 p,$1,0; bar.red.or.pred q,0,p; selp.u32 $0,1,0,q;}", "r", "r", BARRIER)
syncwarp = asm("bar.warp.sync 0xffffffff;", "", "", BARRIER)
cp_async16 = asm("cp.async.cg.shared.global.L2::256B [$0],[$1],16;", "", "rl", BARRIER)
# 16 bytes of each lane below a number of lanes, at 0 and at 512, and below another number at 1024
_COPY = "cp.async.cg.shared.global.L2::256B [$0+{0}],[$1+{0}],16;"
cp_unit = asm(
    "{.reg .pred p,q; setp.lt.s32 p,$2,$3; setp.lt.s32 q,$2,$4;"
    f"@p {_COPY.format(0)} @p {_COPY.format(512)} @q {_COPY.format(1024)}" + "}",
    "",
    "rliii",
    BARRIER,
)
cp_commit = asm("cp.async.commit_group;", "", "", BARRIER)
pdl_wait = asm("griddepcontrol.wait;", "", "", BARRIER)
pdl_launch = asm("griddepcontrol.launch_dependents;", "", "", BARRIER)


def cp_wait(groups: int) -> Any:
    """The intrinsic that waits until at most so many groups of copies are under way."""
    return asm(f"cp.async.wait_group {groups};", "", "", BARRIER)


# ---- exchange between blocks
fence_gpu = asm("fence.acq_rel.gpu;", "", "", BARRIER)
# old value; counts up to a limit, then starts at 0 again
atom_inc = asm("atom.acq_rel.gpu.global.inc.u32 $0,[$1],$2;", "r", "lr", BARRIER)
atom_inc_relaxed = asm("atom.relaxed.gpu.global.inc.u32 $0,[$1],$2;", "r", "lr", BARRIER)  # orders nothing
red_max = asm("red.global.max.u32 [$0],$1;", "", "lr", ORDERED)
atom_add_s = asm("atom.shared.add.u32 $0,[$1],$2;", "r", "rr", ORDERED)  # old value

# a barrier of the grid: what a thread has seen before it arrives, those that have waited see
arrive = asm("red.release.gpu.global.add.u32 [$0],1;", "", "l", BARRIER)
wait_for = asm(
    "{.reg .pred p; .reg .u32 n; again_${:uid}: ld.acquire.gpu.global.u32 n,[$0]; setp.lt.u32 p,n,$1;"
    "@p bra again_${:uid};}",
    "",
    "lr",
    BARRIER,
)

# ---- exchange within a warp
shfl_xor = asm("shfl.sync.bfly.b32 $0,$1,$2,0x1f,0xffffffff;", "r", "rr", ORDERED)
shfl_xor_f = asm("shfl.sync.bfly.b32 $0,$1,$2,0x1f,0xffffffff;", "f", "fr", ORDERED)
shfl_idx = asm("shfl.sync.idx.b32 $0,$1,$2,0x1f,0xffffffff;", "r", "rr", ORDERED)
shfl_idx_f = asm("shfl.sync.idx.b32 $0,$1,$2,0x1f,0xffffffff;", "f", "fr", ORDERED)
shfl_up_f = asm(
    "{.reg .pred p; .reg .f32 t; shfl.sync.up.b32 t|p,$1,$2,0,0xffffffff; selp.f32 $0,t,0f00000000,p;}",
    "f",
    "fr",
    ORDERED,
)
movmatrix = asm("movmatrix.sync.aligned.m8n8.trans.b16 $0,$1;", "r", "r", ORDERED)

# ---- tensor cores: D = A[16 x 16] B[16 x 8] + C
_MMA = (
    "mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 {{$0,$1,$2,$3}},{{$4,$5,$6,$7}},{{$8,$9}},{{$10,$11,$12,$13}};"
)
MMA = {dtype: (_MMA.format(dtype), "ffff", "rrrrrrffff") for dtype in ("f16", "bf16")}


def wgmma_pair(tiles: int) -> tuple[str, str, str]:
    """Two steps of k of a warpgroup's product in place: 8 words of A, two descriptors of B, the sums of ``tiles``.

    sm_90a. B lies in shared memory, k in a row.
    """
    sums = 4 * tiles
    names = [f"${index}" for index in range(sums + 10)]
    products = "".join(
        f"wgmma.mma_async.sync.aligned.m64n{8 * tiles}k16.f32.f16.f16 {{{','.join(names[:sums])}}},"
        f"{{{','.join(names[sums + 4 * step : sums + 4 * step + 4])}}},{names[sums + 8 + step]},p,1,1,0;"
        for step in range(2)
    )
    always = ".reg .pred p; setp.eq.u32 p,0,0; wgmma.fence.sync.aligned;"
    return f"{{{always}{products}wgmma.commit_group.sync.aligned;}}", "f" * sums, "r" * 8 + "ll" + "f" * sums


# at most one group, or none, under way; what generic stores left is there for products
wgmma_wait_1 = asm("wgmma.wait_group.sync.aligned 1;", "", "", BARRIER)
WGMMA_DONE = "wgmma.wait_group.sync.aligned 0;"
fence_async = asm("fence.proxy.async.shared::cta;", "", "", BARRIER)

mma_f16 = asm(*MMA["f16"])
mma_bf16 = asm(*MMA["bf16"])

# ---- floats, and pairs of halves (the first in the low bits)
bits_f = asm("mov.b32 $0,$1;", "f", "r")
f_bits = asm("mov.b32 $0,$1;", "r", "f")
ex2 = asm("ex2.approx.ftz.f32 $0,$1;", "f", "f")
lg2 = asm("lg2.approx.ftz.f32 $0,$1;", "f", "f")
rcp = asm("rcp.approx.ftz.f32 $0,$1;", "f", "f")
rsqrt = asm("rsqrt.approx.ftz.f32 $0,$1;", "f", "f")
fmaxf = asm("max.f32 $0,$1,$2;", "f", "ff")
fmax_abs = asm("{.reg .f32 t; abs.f32 t,$2; max.f32 $0,$1,t;}", "f", "ff")
fminf = asm("min.f32 $0,$1,$2;", "f", "ff")
fmaf = asm("fma.rn.f32 $0,$1,$2,$3;", "f", "fff")
# of one rounding each, whatever the compiler may do to floats elsewhere
add_rn = asm("add.rn.f32 $0,$1,$2;", "f", "ff")
sub_rn = asm("sub.rn.f32 $0,$1,$2;", "f", "ff")
mul_rn = asm("mul.rn.f32 $0,$1,$2;", "f", "ff")
div_rn = asm("div.rn.f32 $0,$1,$2;", "f", "ff")
h2_pack = asm("cvt.rn.f16x2.f32 $0,$2,$1;", "r", "ff")
bf2_pack = asm("cvt.rn.bf16x2.f32 $0,$2,$1;", "r", "ff")
h2_lo_f = asm("{.reg .b16 l,h; mov.b32 {l,h},$1; cvt.f32.f16 $0,l;}", "f", "r")
h2_hi_f = asm("{.reg .b16 l,h; mov.b32 {l,h},$1; cvt.f32.f16 $0,h;}", "f", "r")
bf2_lo_f = asm("shl.b32 $0,$1,16;", "f", "r")
bf2_hi_f = asm("and.b32 $0,$1,0xffff0000;", "f", "r")
h2_add = asm("add.f16x2 $0,$1,$2;", "r", "rr")
h2_max = asm("max.f16x2 $0,$1,$2;", "r", "rr")
bf2_max = asm("max.bf16x2 $0,$1,$2;", "r", "rr")
h2_mul = asm("mul.f16x2 $0,$1,$2;", "r", "rr")
_BROADCAST = "{.reg .b16 l,h; .reg .b32 t; mov.b32 {l,h},$2; mov.b32 t,{%s,%s}; mul.f16x2 $0,$1,t;}"
h2_mul_lo = asm(_BROADCAST % ("l", "l"), "r", "rr")  # both times the second operand's low half
h2_mul_hi = asm(_BROADCAST % ("h", "h"), "r", "rr")

# ---- codes of a cache
# NaN as zero, infinity as the largest bfloat16
finite = asm(
    "{.reg .pred p; .reg .f32 t; max.f32 t,$1,0fFF7F0000; min.f32 t,t,0f7F7F0000; setp.num.f32 p,$1,$1;"
    "selp.f32 $0,t,0f00000000,p;}",
    "f",
    "f",
)
# round(x), ties to even, within +-127
int8_code = asm("{.reg .s32 t; cvt.rni.s32.f32 t,$1; min.s32 t,t,127; max.s32 $0,t,-127;}", "r", "f")
# E4M3 of |x|, ties to even, at most 448: what is below 2^-6 counts in units of 2^-9
e4m3_code = asm(
    "{.reg .pred p; .reg .f32 a; .reg .b32 n,t; abs.f32 a,$1; mov.b32 n,a; bfe.u32 t,n,20,1; add.u32 n,n,t;"
    "add.u32 n,n,0x7FFFF; shr.u32 n,n,20; sub.s32 n,n,960; fma.rn.f32 a,a,0f44000000,0f4B000000; mov.b32 t,a;"
    "and.b32 t,t,15; abs.f32 a,$1; setp.lt.f32 p,a,0f3C800000; selp.b32 n,t,n,p; min.s32 $0,n,126;}",
    "r",
    "f",
)
# magnitude of the E2M1 code of x / step, ties to even, for x in bfloat16 and step in E4M3: then the products of step
# and midpoints are exact, and comparing with them decides as the rounded quotient does
_MIDPOINTS = {0x3E800000: "gt", 0x3F400000: "ge", 0x3FA00000: "gt", 0x3FE00000: "ge"}  # 0.25 0.75 1.25 1.75
_MIDPOINTS |= {0x40200000: "gt", 0x40600000: "ge", 0x40A00000: "gt"}  # 2.5 3.5 5
e2m1_code = asm(
    "{.reg .pred p; .reg .f32 a,t; .reg .b32 n; abs.f32 a,$1; mov.b32 n,0;"
    + "".join(
        f"mul.f32 t,$2,0f{bits:08X}; setp.{test}.f32 p,a,t; @p add.u32 n,n,1;" for bits, test in _MIDPOINTS.items()
    )
    + "mov.b32 $0,n;}",
    "r",
    "ff",
)

# ---- E2M1 codes and E4M3 scales as halves
# A word holds 8 codes, 4 in each of its halves, their bits where masks move them right into a half (sign to bit 15,
# the rest to bits 11..9, which reads code * 2^-14, also of a subnormal):
#   h0: sign 15, magnitude 11..9   h1: 7, 3..1   h2: 8, 14..12   h3: 0, 6..4
_MAGNITUDES, _SIGNS = 0x0E0E0E0E, 0x80808080


def e2m1_halves(b: Any, word: Any) -> list[Any]:
    first = b.and_(word, constant(0x8E008E00))
    second = b.and_(b.shl(word, constant(8)), constant(0x8E008E00))
    magnitudes = b.and_(b.lshr(word, constant(3)), constant(_MAGNITUDES))
    others = b.or_(b.and_(b.shl(word, constant(7)), constant(_SIGNS)), magnitudes)
    third = b.and_(others, constant(0xFF00FF00))
    fourth = b.and_(b.shl(others, constant(8)), constant(0xFF00FF00))
    return [first, second, third, fourth]


def _half_of_codes(b: Any, word: Any) -> list[Any]:
    magnitudes = b.and_(b.lshr(word, constant(3)), constant(0x0E000E00))
    third = b.or_(b.and_(b.shl(word, constant(7)), constant(0x80008000)), magnitudes)
    return [b.and_(word, constant(0x8E008E00)), third]


dq8 = ir32(e2m1_halves, 1, 4)
dq4 = ir32(_half_of_codes, 1, 2)  # h0 and h2; h1 and h3 of a word are those of the word shifted left by 8

# Half a word holds two scales without their signs: the first in bits 6..0, the second in 13..7. A half that holds
# one in bits 13..7 reads scale * 2^-8. Scales in [2^-6, 240] may be OR-ed with bit 14 instead: scale * 2^8.
_SCALES = 0x3F803F80
sc_first = ir32(lambda b, w: b.and_(b.shl(w, constant(7)), constant(_SCALES)), 1)
sc_second = ir32(lambda b, w: b.and_(w, constant(_SCALES)), 1)
sc_first_n = ir32(lambda b, w, o: b.or_(b.and_(b.shl(w, constant(7)), constant(_SCALES)), o), 2)
sc_second_n = ir32(lambda b, w, o: b.or_(b.and_(w, constant(_SCALES)), o), 2)
# Bytes of E4M3 in the high bytes of halves: value * 2^-8, also of a subnormal.
e4m3_halves = ir32(
    lambda b, w: b.or_(b.and_(w, constant(0x80008000)), b.and_(b.lshr(w, constant(1)), constant(_SCALES))), 1
)
H2_EXP16 = 0x40004000
H2_2P15 = 0x78007800  # 2^15 twice: lifts scale * 2^-8 to scale * 2^7
