"""The process that compiles the CPU kernels computes the same bits as those that find them on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch
from kernels_numba.cpu import attention
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.shapes import AttentionShape

torch.manual_seed(0)
shape = AttentionShape(heads=4, kv_heads=1, head_dim=256, rotary_dim=64)
kv = PagedKv.zeros(KvLayout(KV_CODECS["fp32"], 1, 1, 256), 1)
kv.plain.copy_(torch.randn(kv.plain.shape))
query, projected = torch.randn(60, 4, 256), torch.randn(60, shape.projected_width)
pages = torch.zeros(1, dtype=torch.int32)
out = attention.attention_prefill(query, projected, kv, 0, pages, 60, shape)
print(out.numpy().tobytes().hex())
"""


def test_a_first_start_computes_the_bits_of_later_ones(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, later = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    )
    assert first == later != ""
