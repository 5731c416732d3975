"""Assembles every CUDA kernel for all its targets and records what each uses, beside the tests that hold it to budgets.

    python -m tools.assemble_kernels [--all]

Takes minutes. Without ``--all`` only kernels whose sources changed since the record; those that are gone leave it.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernels_numba.nvidia.compile import build
from kernels_numba.nvidia.cubins import fingerprint
from kernels_numba.nvidia.registry import BY_NAME, KERNELS

RECORD = Path(__file__).parent.parent / "tests/kernels_numba/nvidia/assembled.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also kernels that are recorded as they are")
    args = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.exists() and not args.all else {}
    record = {name: entry for name, entry in record.items() if name in BY_NAME}
    missing = [spec.name for spec in KERNELS if record.get(spec.name, {}).get("sources") != fingerprint(spec)]
    with ProcessPoolExecutor() as pool:
        for name, entry in zip(missing, pool.map(assembled, missing), strict=True):
            record[name] = entry
            lines = (f"  {json.dumps(each)}: {json.dumps(record[each])}" for each in sorted(record))
            RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            print(name, flush=True)


def assembled(name: str) -> dict[str, Any]:
    """Fingerprint of the sources and resources by target."""
    spec = BY_NAME[name]
    targets = {arch: asdict(build(spec, arch)[1]) for arch in spec.archs}
    return {"sources": fingerprint(spec), "targets": targets}


if __name__ == "__main__":
    main()
