"""How much faster a GPU multiplies matrices in fewer bits, by the family that its name tells.

The ratio of the rates is that of the operations per clock of a multiprocessor, whatever the clock
and their number (CUDA Programming Guide, "Throughput of Native Arithmetic Instructions"; white
papers of GA102, Ada and RTX Blackwell). GeForce halves what accumulates in FP32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["speedups_of"]

_FAMILIES: Final = (
    (r"\bV100|TITAN V\b", {"fp16": 8.0}),
    (r"GeForce RTX 20\d\d", {"fp16": 4.0}),
    (r"\bT4\b|Quadro RTX|TITAN RTX", {"fp16": 8.0}),
    (r"\bA(100|800|30)\b|\bA100X", {"tf32": 8.0, "bf16": 16.0, "fp16": 16.0}),
    (r"GeForce RTX (3|4|5)0\d\d", {"bf16": 2.0, "fp16": 2.0}),
    (r"\b(A2|A10|A16|A40|L4|L40S)\b|RTX A\d000", {"tf32": 2.0, "bf16": 4.0, "fp16": 4.0}),
    (r"RTX \d000 Ada|RTX PRO \d000 Blackwell", {"tf32": 2.0, "bf16": 4.0, "fp16": 4.0}),
    (r"\b(H100|H200|H800|GH200)\b", {"tf32": 7.4, "bf16": 14.8, "fp16": 14.8}),
    (r"\b(B100|B200|GB200)\b", {"tf32": 15.0, "bf16": 30.0, "fp16": 30.0}),
)
_PATTERNS: Final = tuple((re.compile(pattern), rates) for pattern, rates in _FAMILIES)


def speedups_of(device_name: str) -> Mapping[str, float]:
    """Return how many times as fast as FP32 each precision is at its peak; {} where not known."""
    return next((rates for pattern, rates in _PATTERNS if pattern.search(device_name)), {})
