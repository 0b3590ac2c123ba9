"""Whether a kernel computes on matrix units (tensor cores, AMD's matrix cores), by its name."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from traceprof.model.activity import Activity
from traceprof.model.kernel_names.parsing import KernelName, parse_name, words_of
from traceprof.model.kernel_names.precision import precision_of
from traceprof.model.patterns import pattern

__all__ = ["MATRIX_WORK", "MatrixUnits", "matrix_units_of", "multiplies_without"]

MATRIX_WORK: Final = frozenset({Activity.GEMM, Activity.CONVOLUTION, Activity.ATTENTION})
"""The classes that can use them."""


class MatrixUnits(StrEnum):
    """Whether they are used."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


_HELPERS: Final = pattern(
    r"split ?k ?(reduce|kernel)|^reduce|reduc(e|tion) kernel|offsets kernel|gemm pointers"
    r"|im\d?d?2 ?col|col2 ?im|tiles kernel|^winograd|generate|fixup"
    r"|\bdot kernel|global kernel|^thd |combine|post ?process|pre ?process|convert|dot ?d?o"
    r"|o ?grad dot|recurrent|delta net|merge states? kernel$"
)
_PLAIN: Final = pattern(
    r"simt|ffma|(^|[ _]|Plus)g?[shdcz](gemm|cudnn|gemv)|gemv|Cijk_|kgemm|gemmk1|gemmSN|gtcn"
    r"|naive|Sp3AsmConv|GcnAsm|winograd|_convolve_|[dw]grad\w*_(engine|alg\d)|^[dw]grad2d|grouped_direct|depthwise"
    r"|mul_mat_vec|implicit_convolve|miopenConv|MIOpenC|im2col",
    re.IGNORECASE,
)
_VECTORS: Final = pattern(r"gemv|gemmk1|mul_mat_vec|naive", re.IGNORECASE)
"""Products with a vector: bound by memory, whatever they compute on."""
_MATRIX: Final = pattern(
    r"tensorop|OpClassTensorOp|tensor\d+x\d+x\d|warpgroup|wmma|wgmma|[hi]mma|tcgen05|UMMA"
    r"|(^|[ _])[shdi](884|1688|8816|16816|161616)|\d+x\d+x\d+gemm|nvjet|m16n8k"
    r"|w8a8|marlin|deep_gemm|xdl|mfma|gtcx|_MI\d+x\d|GemmUniversal|\bbmm_|MmaMultistage|MmaTensorOp",
    re.IGNORECASE,
)
_FLASH: Final = pattern(r"[Ff]lash|fmha|Fmha|paged_attention_ll4mi_QKV|AttentionKernel|native_sdpa")
_NARROW: Final = ("fp8",)
"""Only matrix units multiply these."""
_HOPPER: Final = "device_kernel"
"""What CUTLASS 3 wraps kernels of Hopper and later in."""


def matrix_units_of(name: str, activity: Activity) -> MatrixUnits:
    """Return whether a kernel of this name and class uses them; `NO` of other than matrix work."""
    if activity not in MATRIX_WORK:
        return MatrixUnits.NO
    taken = parse_name(name)
    functors = [functor.rpartition("::")[2] for functor in taken.functors]
    if _helps(taken):
        return MatrixUnits.NO
    applied = " ".join((taken.scope, taken.identifier, *functors))
    if _MATRIX.search(applied) or (activity is Activity.ATTENTION and _FLASH.search(applied)):
        return MatrixUnits.YES
    if _PLAIN.search(" ".join((taken.scope, taken.identifier, *functors[:1]))):
        return MatrixUnits.NO
    if activity is Activity.GEMM and (taken.identifier == _HOPPER or precision_of(name) in _NARROW):
        return MatrixUnits.YES
    return MatrixUnits.UNKNOWN


def multiplies_without(name: str, activity: Activity) -> bool:
    """Return whether such a kernel multiplies matrices without the units, as its name says.

    What helps other kernels (sums of split-K, transforms, offsets) and products with a vector
    would not run on them in any precision.
    """
    taken = parse_name(name)
    return (
        activity in (Activity.GEMM, Activity.CONVOLUTION)
        and matrix_units_of(name, activity) is MatrixUnits.NO
        and not _helps(taken)
        and not _VECTORS.search(f"{taken.scope} {taken.identifier}")
    )


def _helps(taken: KernelName) -> bool:
    applied = (words_of(functor.rpartition("::")[2]) for functor in taken.functors[:2])
    return any(_HELPERS.search(words) for words in (taken.words, *applied))
