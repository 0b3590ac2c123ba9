#!/usr/bin/env python3
"""Generate a Kineto trace of any size: operators, their launches and their kernels.

scripts/generate_kineto.py OUT.json [--megabytes 200]
"""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["generate"]

HEAD = (
    '{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1700000000000000000,\n'
    '  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n  "traceEvents": [\n'
)
EVENT = (
    '  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
    '    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
)
LAUNCH_US = 12.0


def generate(path: Path, n_bytes: int) -> None:
    """Write about ``n_bytes`` as Kineto lays them out."""
    with path.open("w", encoding="utf-8") as file:
        file.write(HEAD)
        number = 0
        while file.tell() < n_bytes:
            file.write(",\n" * (number > 0) + ",\n".join(_events(number)))
            number += 1
        file.write("\n  ]\n}\n")


def _events(number: int) -> list[str]:
    at = 4_000_000_000_000 + number * LAUNCH_US
    host, device = {"pid": 4242, "tid": 4242}, {"pid": 0, "tid": 7}
    name = (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::Functor<{number % 200}> >"
    )
    return [
        EVENT.format(
            category="cpu_op",
            name=f"aten::op_{number % 90}",
            ts=at,
            dur=10.25,
            **host,
            args=f'"External id": {number}, "Record function id": 0, "Sequence number": {number}, '
            '"Input Dims": [[32, 1024], [1024, 1024], []], "Input type": ["float", "float", ""], '
            f'"Ev Idx": {number}',
        ),
        EVENT.format(
            category="cuda_runtime",
            name="cudaLaunchKernel",
            ts=at + 2,
            dur=4.5,
            **host,
            args=f'"External id": {number}, "cbid": 211, "correlation": {number}',
        ),
        EVENT.format(
            category="kernel",
            name=name,
            ts=at + 8,
            dur=9.125,
            **device,
            args=f'"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
            f'"correlation": {number}, "registers per thread": 32, "shared memory": 0, '
            '"blocks per SM": 3.76, "warps per SM": 7.5, "grid": [256, 1, 1], '
            '"block": [128, 1, 1], "est. achieved occupancy %": 24',
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--megabytes", type=int, default=200)
    options = parser.parse_args()
    generate(options.out, options.megabytes * 1_000_000)


if __name__ == "__main__":
    main()
