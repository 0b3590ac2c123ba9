"""Matrix products that read 32 bits, by the names of their kernels."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["wide_precision_of"]

_ARGUMENTS: Final = re.compile(r"[<(].*", re.DOTALL)
_WRAPPER: Final = re.compile(r"^cutlass::Kernel2?<(?P<wrapped>\w+)")
_NARROW: Final = re.compile(r"bf16|f16|fp16|half|e[45]m[23]|fp8|i8|int8|f64|double", re.IGNORECASE)
_NARROW_TYPE: Final = re.compile(r"^[^<(]*<\s*(__half|half|__nv_bfloat16|c10::Half|double|signed)")
_TF32: Final = re.compile(r"tf32|tfloat32|(^|_)s1688(gemm|cudnn|fprop|dgrad|wgrad)", re.IGNORECASE)
_FP32: Final = re.compile(
    r"(^|[^a-z0-9]|[a-z0-9]_)sgemm|scudnn|simt_s|f32f32_f32f32_f32|ffma|fmha_cutlass[FB]_f32"
    r"|cijk_[a-z]{4}_[a-z]{4}_s(b|_)|nvjet_\w*?sss_",
    re.IGNORECASE,
)
_FP32_ENGINE: Final = re.compile(r"[wd]grad\w*(engine|alg\d)\w*<float")


def wide_precision_of(name: str) -> str:
    """Return "tf32" or "fp32" where a kernel of this name multiplies matrices in it, else ""."""
    own = name.removeprefix("void ")
    wrapped = _WRAPPER.match(own)
    identifier = wrapped["wrapped"] if wrapped else _ARGUMENTS.sub("", own)
    if _NARROW.search(_TF32.sub("", identifier)) or _NARROW_TYPE.match(own):
        return ""
    if _TF32.search(identifier):
        return "tf32"
    return "fp32" if _FP32.search(identifier) or _FP32_ENGINE.search(own) else ""
