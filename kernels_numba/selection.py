"""Which implementation of the op table serves."""

from __future__ import annotations

import logging

import torch

from kernels_numba.ops import OpTable

_log = logging.getLogger(__name__)


def ops_for(device: torch.device, dtype: torch.dtype, *, fp4_prefill: bool = False) -> OpTable:
    """The implementations that serve activations of ``dtype`` on ``device``; only those are imported.

    ``fp4_prefill``: products of many rows round activations to NVFP4, if the device multiplies such numbers.
    """
    if device.type == "cpu" and dtype == torch.float32:
        from kernels_numba.cpu.table import CPU_OPS

        _warn_without_fp4(fp4_prefill, "the CPU has no FP4 products")
        return CPU_OPS
    from kernels_numba.torch_ops.table import TORCH_OPS, torch_ops_because

    if device.type != "cuda" or dtype != torch.bfloat16:
        _warn_without_fp4(fp4_prefill, f"kernels take bfloat16 on CUDA, not {dtype} on {device.type}")
        return TORCH_OPS
    try:
        import cuda.bindings.driver  # noqa: F401
    except ImportError as error:
        reason = f"CUDA kernels need the package cuda-bindings: {error}"
        _log.warning("torch serves every op, %s", reason)
        return torch_ops_because(reason)
    from kernels_numba.nvidia.table import cuda_ops

    return cuda_ops(device, fp4_prefill)


def _warn_without_fp4(wanted: bool, reason: str) -> None:
    if wanted:
        _log.warning("engine.prefill_activations: bf16 instead of nvfp4, products of prompts are not FP4: %s", reason)
