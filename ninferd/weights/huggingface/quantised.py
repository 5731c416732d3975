"""How one weight of a checkpoint is stored, told from the tensors that are there and not from any configuration.

Repositories are quantised again in place, their lists of ignored modules are wrong or use other prefixes, and one
model mixes layouts; the tensors beside a weight say for certain what it is. For the weight ``X.weight``, ``[N, K]``:

- compressed-tensors nvfp4-pack-quantized: ``X.weight_packed``, ``X.weight_scale``, ``X.weight_global_scale`` (divides)
- ModelOpt NVFP4: ``X.weight`` (U8), ``X.weight_scale``, ``X.weight_scale_2`` (multiplies)
- FP8: ``X.weight`` (F8_E4M3) and ``X.weight_scale`` (one, or one per row) or ``X.weight_scale_inv`` (128x128 blocks);
  all multiply
- plain: ``X.weight`` in BF16, F16, F32 or F64
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, prod
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.formats.minifloat import float32_of_bf16
from ninferd.weights.formats.registry import (
    BF16,
    FP8_BLOCK,
    FP8_BLOCK_SIZE,
    FP8_ROW,
    FP16,
    FP32,
    FP64,
    NVFP4,
    NVFP4_BLOCK,
)
from ninferd.weights.huggingface.safetensors import StoredTensor
from ninferd.weights.parameters.huggingface_names import SourceTensor
from ninferd.weights.stored import Plane, StoredMatrix

Tensors = Mapping[str, StoredTensor]
"""By canonical name."""

_PLAIN = {"BF16": (BF16, "<u2"), "F16": (FP16, "<f2"), "F32": (FP32, "<f4"), "F64": (FP64, "<f8")}
_SCALE_TYPES = {"F32": "<f4", "BF16": "<u2", "F16": "<f2"}
_READABLE = "BF16, F16, F32, F64, FP8 (F8_E4M3) and NVFP4 of compressed-tensors and ModelOpt"

_WEIGHT_PARTS = (
    "weight_packed",
    "weight_scale",
    "weight_global_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
)
_ACTIVATION_PARTS = ("input_scale", "input_global_scale")
_FOREIGN_PARTS = {"qweight": "AWQ or GPTQ", "weight.absmax": "bitsandbytes", "SCB": "bitsandbytes"}


def is_stored(tensors: Tensors, name: str) -> bool:
    """Whether the weight ``name`` is there in any layout."""
    return name in tensors or f"{_base(name)}.weight_packed" in tensors


def parts_of(name: str) -> tuple[str, ...]:
    """Every name that a weight's tensors can have in any layout, that of the plain weight first."""
    return (name, *(f"{_base(name)}.{part}" for part in (*_WEIGHT_PARTS, *_ACTIVATION_PARTS)))


def foreign_layout(tensors: Tensors, name: str) -> str | None:
    """The method that a weight which is not there was stored by, as far as its other tensors give it away."""
    found = (method for part, method in _FOREIGN_PARTS.items() if f"{_base(name)}.{part}" in tensors)
    return next(found, None)


def stored_matrix(tensors: Tensors, source: SourceTensor) -> StoredMatrix:
    """The whole of a weight that ``is_stored``; reads its global scales and scales per row, nothing else.

    Raises InputError naming file and tensor if shapes, types or those scales are not those of any layout.
    """
    base = _base(source.name)
    packed = tensors.get(f"{base}.weight_packed")
    if packed is not None:
        if source.name in tensors:
            raise InputError(f"{packed.where}: the same weight is also there as {tensors[source.name].name}")
        return _Weight(tensors, source, packed).compressed_tensors_nvfp4()
    weight = _Weight(tensors, source, tensors[source.name])
    if weight.tensor.dtype in _PLAIN:
        return weight.plain()
    if weight.tensor.dtype == "U8" and f"{base}.weight_scale_2" in tensors:
        return weight.modelopt_nvfp4()
    if weight.tensor.dtype == "F8_E4M3":
        return weight.fp8()
    raise InputError(
        f"{weight.tensor.where} has type {weight.tensor.dtype} in a layout that cannot be read; readable: {_READABLE}"
    )


def _base(name: str) -> str:
    return name.removesuffix(".weight")


class _Weight:
    """One weight and the tensors beside it."""

    def __init__(self, tensors: Tensors, source: SourceTensor, tensor: StoredTensor) -> None:
        self._tensors = tensors
        self._source = source
        self._base = _base(source.name)
        self.tensor = tensor

    def plain(self) -> StoredMatrix:
        self._require_parts()
        self._require_shape(self.tensor, self._source.shape)
        format, dtype = _PLAIN[self.tensor.dtype]
        values = Plane(dtype, (self._source.rows, self._source.columns), (self.tensor.span,))
        return self._matrix(format, {"values": values})

    def compressed_tensors_nvfp4(self) -> StoredMatrix:
        self._require_parts("weight_packed", "weight_scale", "weight_global_scale")
        planes = self._nvfp4_planes()
        divisor = self._global_scale("weight_global_scale")
        activation = self._activation("input_global_scale", inverse=False)
        return self._matrix(NVFP4, planes, divisors=(divisor,), activation=activation)

    def modelopt_nvfp4(self) -> StoredMatrix:
        self._require_parts("weight_scale", "weight_scale_2")
        planes = self._nvfp4_planes()
        factor = self._global_scale("weight_scale_2")
        activation = self._activation("input_scale", inverse=True)
        return self._matrix(NVFP4, planes, factors=(factor,), activation=activation)

    def fp8(self) -> StoredMatrix:
        rows, columns = self._matrix_shape()
        self._require_shape(self.tensor, (rows, columns))
        codes = Plane("u1", (rows, columns), (self.tensor.span,))
        if f"{self._base}.weight_scale_inv" in self._tensors:
            self._require_parts("weight_scale_inv")
            return self._matrix(FP8_BLOCK, {"codes": codes, "scales": self._block_scales("weight_scale_inv")})
        self._require_parts("weight_scale")
        scale = self._part("weight_scale")
        if prod(scale.shape) == 1:
            return self._matrix(FP8_ROW, {"codes": codes}, factors=(self._global_scale("weight_scale"),))
        if scale.shape in ((rows,), (rows, 1)):
            values = self._scales(scale)
            if scale.dtype == "BF16":
                return self._matrix(FP8_ROW, {"codes": codes, "scales": Plane("<u2", (rows,), (scale.span,))})
            return self._matrix(FP8_ROW, {"codes": codes}, factors=tuple(values.tolist()))
        return self._matrix(FP8_BLOCK, {"codes": codes, "scales": self._block_scales("weight_scale")})

    def _nvfp4_planes(self) -> dict[str, Plane]:
        rows, columns = self._matrix_shape()
        scales = self._part("weight_scale")
        if columns % NVFP4_BLOCK:
            raise InputError(f"{self.tensor.where}: NVFP4 needs columns in multiples of {NVFP4_BLOCK}, not {columns}")
        self._require_type(self.tensor, "U8")
        self._require_type(scales, "F8_E4M3")
        self._require_shape(self.tensor, (rows, columns // 2))
        self._require_shape(scales, (rows, columns // NVFP4_BLOCK))
        return {
            "codes": Plane("u1", self.tensor.shape, (self.tensor.span,)),
            "scales": Plane("u1", scales.shape, (scales.span,)),
        }

    def _block_scales(self, part: str) -> Plane:
        rows, columns = self._matrix_shape()
        scale = self._part(part)
        blocks = (-(-rows // FP8_BLOCK_SIZE), -(-columns // FP8_BLOCK_SIZE))
        if scale.shape != blocks:
            raise InputError(
                f"{scale.where} has shape {list(scale.shape)}; one scale, {rows} (one per row) or {list(blocks)} (one "
                f"per {FP8_BLOCK_SIZE}x{FP8_BLOCK_SIZE} block) belong to a weight of [{rows}, {columns}]"
            )
        if scale.dtype == "F16":
            self._refuse_type(scale, "F32 or BF16")
        self._scales(scale)
        return Plane(_SCALE_TYPES[scale.dtype], scale.shape, (scale.span,))

    def _matrix_shape(self) -> tuple[int, int]:
        """[N, K] of a quantised weight."""
        if len(self._source.shape) != 2:
            raise InputError(
                f"{self.tensor.where} has type {self.tensor.dtype}: {list(self._source.shape)} must not be quantised"
            )
        return self._source.rows, self._source.columns

    def _global_scale(self, part: str) -> float:
        tensor = self._part(part)
        value = self._scalar(tensor)
        if not (isfinite(value) and value > 0):
            raise InputError(f"{tensor.where} is {value}; a global scale must be finite and above 0")
        return value

    def _activation(self, part: str, *, inverse: bool) -> tuple[float | None, str]:
        """d_x, by which activations are multiplied, or why it is not used. Calibration leaves senseless values at
        times: an expert that no sample reached has none, and its weights are none the worse for it.
        """
        tensor = self._tensors.get(f"{self._base}.{part}")
        if tensor is None:
            return None, ""
        value = self._scalar(tensor)
        divisor = value
        if inverse:
            with np.errstate(over="ignore", divide="ignore"):
                divisor = float(np.float32(np.float64(1) / value))
        if all(isfinite(each) and each > 0 for each in (value, divisor)):
            return divisor, ""
        return None, f"{tensor.where} is {value}, which no activations can be scaled by: they stay in 16 bits"

    def _scalar(self, tensor: StoredTensor) -> float:
        if prod(tensor.shape) != 1:
            raise InputError(f"{tensor.where} has shape {list(tensor.shape)}, expected one number")
        return float(self._values(tensor)[0])

    def _scales(self, tensor: StoredTensor) -> NDArray[np.float32]:
        """Checked values, flat."""
        values = self._values(tensor)
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(wrong):
            raise InputError(
                f"{tensor.where}: element {wrong[0]} is {values[wrong[0]]}; scales must be finite and not negative"
            )
        return values

    def _values(self, tensor: StoredTensor) -> NDArray[np.float32]:
        dtype = _SCALE_TYPES.get(tensor.dtype)
        if dtype is None:
            self._refuse_type(tensor, "F32 or BF16")
        stored = Plane(dtype, (prod(tensor.shape),), (tensor.span,)).array()
        values: NDArray[np.float32] = float32_of_bf16(stored) if tensor.dtype == "BF16" else stored.astype(np.float32)
        return values

    def _part(self, part: str) -> StoredTensor:
        name = f"{self._base}.{part}"
        if name not in self._tensors:
            raise InputError(f"{self.tensor.where} has type {self.tensor.dtype}, but its {name} is missing")
        return self._tensors[name]

    def _require_parts(self, *expected: str) -> None:
        """InputError for tensors beside the weight that would have another meaning than this layout gives them."""
        for part in _WEIGHT_PARTS:
            tensor = self._tensors.get(f"{self._base}.{part}")
            if tensor is not None and part not in expected:
                layout = "a plain weight" if not expected else f"a weight with {' and '.join(expected)}"
                raise InputError(f"{tensor.where} does not belong to {layout} of type {self.tensor.dtype}")

    def _require_shape(self, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise InputError(f"{tensor.where} has shape {list(tensor.shape)}, expected {list(shape)}")

    def _require_type(self, tensor: StoredTensor, dtype: str) -> None:
        if tensor.dtype != dtype:
            self._refuse_type(tensor, dtype)

    def _refuse_type(self, tensor: StoredTensor, expected: str) -> NoReturn:
        raise InputError(f"{tensor.where} has type {tensor.dtype}, expected {expected}")

    def _matrix(
        self,
        format: str,
        planes: Mapping[str, Plane],
        *,
        divisors: tuple[float, ...] = (),
        factors: tuple[float, ...] = (),
        activation: tuple[float | None, str] = (None, ""),
    ) -> StoredMatrix:
        activation_divisor, activation_problem = activation
        return StoredMatrix(
            name=f"tensor {self.tensor.name}",
            path=self.tensor.span.path,
            format=format,
            rows=self._source.rows,
            columns=self._source.columns,
            planes=planes,
            divisors=divisors,
            factors=factors,
            activation_divisor=activation_divisor,
            activation_problem=activation_problem,
        )
