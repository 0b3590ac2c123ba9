"""The element type that a kernel's name shows, "" where it shows none.

The identifier comes before what stands in template arguments, these before the types of the
arguments. Of several the narrowest floating type counts: sums are kept in a wider one than what
they add up. Integers are mostly indices and tell nothing, but for those of matrix work.
"""

from __future__ import annotations

import re
from typing import Final

from traceprof.model.kernel_names.parsing import parse_name
from traceprof.model.patterns import pattern

__all__ = ["PRECISIONS", "precision_of"]

PRECISIONS: Final = ("fp4", "fp8", "int8", "bf16", "fp16", "tf32", "fp32", "fp64")

_OF_LETTER: Final = {
    "h": "fp16",
    "t": "bf16",
    "s": "fp32",
    "q": "fp8",
    "d": "fp64",
    "z": "fp64",
    "c": "fp32",
    "b": "bf16",
    "i": "int8",
}
_NVJET: Final = pattern(r"^nvjet_(?:sm\d+[a-z]?_)?([a-z])[a-z]{2,4}_")
_TENSILE: Final = pattern(r"Cijk_[A-Z]\w{3}_[A-Z]\w{3}_(F8|B8|I8|[BHSDZC])")
_OF_TENSILE: Final = {"F8": "fp8", "B8": "fp8", "I8": "int8"}
_XMMA: Final = pattern(r"xmma_\w*?_(e[45]m[23]|tf32|bf16|f16|f32|f64|i8)(?:e[45]m|tf|bf|f|i)\d")
_SHAPED: Final = pattern(
    r"(?:^|_)([shdi])(?:884|1688|8816|16816|161616|\d+x\d+x\d+)(?:gemm|cudnn|fprop|dgrad|wgrad)"
)
_BLAS: Final = pattern(r"(?:^|_|Plus)g?([shdcz])(?:gemm|cudnn|gemv)", re.IGNORECASE)
_FP16_INTO_FP32: Final = pattern(r"hmma_\w*fp32")
_FUSED_ATTENTION: Final = pattern(r"^fmhaSm\w*?_Qkv(E[245]m[123]|Bfloat16|Fp16)", re.IGNORECASE)

_WORDS: Final = (
    ("fp4", r"nvfp4|mxfp4|fp4|e2m1"),
    ("fp8", r"h?fp8(?:rowwise)?|e[45]m[23](?:fn|fnuz)?|mxfp8|bf8|f8"),
    ("int8", r"int8|i8|s8|q8"),
    ("bf16", r"bf16|bfloat16|bfloat"),
    ("fp16", r"f16|fp16|half"),
    ("tf32", r"tf32\w*"),
    ("fp32", r"f32|fp32|float"),
    ("fp64", r"f64|fp64|double"),
)
_IN_IDENTIFIER: Final = tuple(
    (name, pattern(rf"(?:^|[_\d]x?|(?<=[a-z])(?=[A-Z]))(?i:{words})(?![a-z\d])"))
    for name, words in _WORDS
)
_TYPES: Final = tuple(
    (name, pattern(rf"(?<![\w]){words}(?!\w)"))
    for name, words in (
        ("fp4", r"(?:__nv_fp4\w*|float_e2m1\w*|\w*_e2m1\w*)"),
        ("fp8", r"(?:__nv_fp8\w*|__hip_fp8\w*|Float8_\w+|float_e[45]m3?2?_t|fp8_t|bf8_t)"),
        ("bf16", r"(?:__nv_bfloat16|__hip_bfloat16|hip_bfloat16|__bfloat|BFloat16|bfloat16_t)"),
        ("fp16", r"(?:\w+_hmma_fp(?:16|32)_traits|__half2?|Half|half2?|half_t|float16|_Float16)"),
        ("tf32", r"(?:tfloat32_t|\w+_tf32_traits)"),
        ("fp32", r"float[234]?"),
        ("fp64", r"double[234]?"),
    )
)
_MATRIX_FUNCTOR: Final = pattern(r"^cutlass_|gemm", re.IGNORECASE)
_BYTES: Final = pattern(r"^[nr]ccl|userbuffers")
"""Their types say what is moved as, not what it is."""
_HIDDEN: Final = pattern(r"\bvoid( const)? ?\*")
_BHALF: Final = pattern(r"\bunsigned short\b")
"""Composable Kernel's bf16."""
_QUALIFIED: Final = pattern(r"\b(?:\w+::)+(?=\w)")
_MODES: Final = pattern(r"__nv_fp8_interpretation_t")


def precision_of(name: str) -> str:
    """Return one of `PRECISIONS`, "" where the name shows no element type."""
    taken = parse_name(name)
    if found := _of_library(taken.identifier):
        return "" if found in ("int8", "fp16") and _BYTES.search(taken.identifier) else found
    own = [f.replace("::", "_") for f in taken.functors[:2] if _MATRIX_FUNCTOR.search(f)]
    for functor in own:
        if found := _of_library(functor):
            return found
    if taken.scope.startswith("ck::") and _BHALF.search(taken.template):
        return "bf16"
    arguments = "" if _HIDDEN.search(taken.arguments) else taken.arguments
    return (
        _narrowest_type(taken.template)
        or next(filter(None, map(_of_blas, (taken.identifier, *own))), "")
        or _narrowest_type(arguments)
    )


def _of_library(identifier: str) -> str:
    """Return what the conventions of libraries tell of an identifier."""
    if found := _NVJET.search(identifier):
        return _OF_LETTER.get(found[1], "")
    if found := _TENSILE.search(identifier):
        return _OF_TENSILE.get(found[1]) or _OF_LETTER.get(found[1].lower(), "")
    if (found := _XMMA.search(identifier)) or (found := _FUSED_ATTENTION.search(identifier)):
        return _word(found[1])
    if _FP16_INTO_FP32.search(identifier):
        return "fp16"
    if word := _word(identifier):
        return word
    if found := _SHAPED.search(identifier):
        # Tensor cores take no fp32: what accumulates in it without naming a type reads tf32.
        return "tf32" if found[1] == "s" else _OF_LETTER[found[1]]
    return ""


def _of_blas(identifier: str) -> str:
    found = _BLAS.search(identifier)
    return _OF_LETTER[found[1].lower()] if found else ""


def _word(text: str) -> str:
    return next((name for name, pattern in _IN_IDENTIFIER if pattern.search(text)), "")


def _narrowest_type(text: str) -> str:
    plain = _MODES.sub("", _QUALIFIED.sub("", text))
    return next((name for name, pattern in _TYPES if pattern.search(plain)), "")
