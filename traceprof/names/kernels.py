"""Properties of a kernel from its name: precision, forward or backward pass, and matrix units."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.activity import Activity
from traceprof.model.grouping import places_of
from traceprof.model.table import Names, Table
from traceprof.names.parsing import KernelName, parse_name, pattern, shortened_numbers, words_of

PRECISIONS: Final = ("fp4", "fp8", "int8", "bf16", "fp16", "tf32", "fp32", "fp64")

_PRECISION_OF_LETTER: Final = {
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
_CUDNN_ATTENTION: Final = pattern(r"^cudnn_generated_fort_native_sdpa_\w{0,99}_f16_")
"""Attention of cuDNN, whose names have "f16" for BF16 as well as for FP16."""
_TENSILE: Final = pattern(r"Cijk_[A-Z]\w{3}_[A-Z]\w{3}_(F8|B8|I8|[BHSDZC])")
_PRECISION_OF_TENSILE: Final = {"F8": "fp8", "B8": "fp8", "I8": "int8"}
_XMMA: Final = pattern(
    r"xmma_\w{0,99}?_(e[45]m[23]|tf32|bf16|f16|f32|f64|i8)(?:e[45]m|tf|bf|f|i)\d"
)
_SHAPED: Final = pattern(
    r"(?:^|_)([shdi])(?:884|1688|8816|16816|161616|\d+x\d+x\d+)(?:gemm|cudnn|fprop|dgrad|wgrad)"
)
_BLAS: Final = pattern(r"(?:^|_|Plus)g?([shdcz])(?:gemm|cudnn|gemv)", re.IGNORECASE)
_FP16_INTO_FP32: Final = pattern(r"hmma_\w{0,99}fp32")
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
_OPAQUE_TYPE: Final = pattern(r"OpaqueType<(\d+)u?>")
"""PyTorch's type of kernels that copy values of any type of this size."""
_ELEMENT_BYTES: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
_MATRIX_FUNCTOR: Final = pattern(r"^cutlass_|gemm", re.IGNORECASE)
_MOVES_BYTES: Final = pattern(r"^[nr]ccl|userbuffers")
"""Communication kernels, whose type names the transfer unit, not the data type."""
_VOID_POINTER: Final = pattern(r"\bvoid( const)? ?\*")
_BHALF: Final = pattern(r"\bunsigned short\b")
"""Composable Kernel's name for bf16."""
_QUALIFIED: Final = pattern(r"\b(?:\w+::)+(?=\w)")
_TYPE_OF_MODE: Final = pattern(r"__nv_fp8_interpretation_t")
_BACKWARD: Final = pattern(
    r"\b(bwd|backward|bw|bprop|bp\d?|wrw|wr w)\b|[dw]grad|\bd?grad\b|gamma beta|\bdbias"
    r"|internal gradients|masked scale|bias ?grad|\bgrad (input|weight)|gradient|^reduce bn"
)
_FORWARD: Final = pattern(
    r"\b(fwd|forward|fw|fprop|fp)\b|update output|\d(fprop)\b|convolve|winograd forward"
    r"|^(cu apply|vectorized) \w+ norm|collect statistics|^welford|^rowwise moments"
    r"|^general layer norm|rms ?norm (quant )?kernel|cudnn .{0,99}relu|conv\dd grouped direct"
    r"|\bprefill|\bdecode with|^pod with kv|^fmha sm"
)
MATRIX_WORK: Final = frozenset({Activity.GEMM, Activity.CONVOLUTION, Activity.ATTENTION})
"""The classes that can use matrix units."""
_HELPERS: Final = pattern(
    r"split ?k ?(reduce|kernel)|^reduce|reduc(e|tion) kernel|offsets kernel|gemm pointers"
    r"|im\d?d?2 ?col|col2 ?im|tiles kernel|^winograd|\bgenerate\b|fixup"
    r"|\bdot kernel|global kernel|^thd |combine|post ?process|pre ?process|convert|dot ?d?o"
    r"|o ?grad dot|recurrent|delta net|merge states? kernel$"
)
_WITHOUT_MATRIX_UNITS: Final = pattern(
    r"simt|ffma|(^|[ _]|Plus)g?[shdcz](gemm|cudnn|gemv)|gemv|Cijk_|kgemm|gemmk1|gemmSN|gtcn"
    r"|naive|Sp3AsmConv|GcnAsm|winograd|_convolve_|[dw]grad\w{0,99}_(engine|alg\d)|^[dw]grad2d|grouped_direct|depthwise"
    r"|mul_mat_vec|implicit_convolve|miopenConv|MIOpenC|im2col",
    re.IGNORECASE,
)
_WITH_MATRIX_UNITS: Final = pattern(
    r"tensorop|OpClassTensorOp|tensor\d+x\d+x\d|warpgroup|wmma|wgmma|[hi]mma|tcgen05|UMMA"
    r"|(^|[ _])[shdi](884|1688|8816|16816|161616)|\dx\d+x\d+gemm|nvjet|m16n8k"
    r"|w8a8|marlin|deep_gemm|xdl|mfma|gtcx|_MI\d+x\d|GemmUniversal|\bbmm_|MmaMultistage|MmaTensorOp",
    re.IGNORECASE,
)
_FLASH_ATTENTION: Final = pattern(
    r"[Ff]lash|fmha|Fmha|paged_attention_ll4mi_QKV|AttentionKernel|native_sdpa"
)
_MATRIX_ONLY_PRECISIONS: Final = ("fp8",)
"""Only matrix units multiply these types."""
_CUTLASS_3_KERNEL: Final = "device_kernel"
"""CUTLASS 3's wrapper of kernels for Hopper and later."""
_FUNCTOR_NAME: Final = pattern(
    r"(?i)(functor(onself)?|func|op|ops|kernel|kernel_cuda)(_\w{1,99})?$"
)
_LAUNCHERS: Final = pattern(r"(^|::)gpu_kernel_impl(_nocast)?$")
"""Functors that only launch the functor that they are given."""
_CUTLASS_KERNELS: Final = frozenset({"Kernel", "Kernel2"})
"""CUTLASS wrappers, whose names do not describe the work."""
SHORT_NS: Final = 10_000
"""The launch of a shorter kernel costs about as much time as its execution."""
_FROM_BRACKET: Final = pattern(r"[<(].*", re.DOTALL)
_CUTLASS_WRAPPER: Final = pattern(r"^cutlass::Kernel2?<(?P<wrapped>\w+)")
_NARROWER: Final = pattern(r"bf16|f16|fp16|half|e[45]m[23]|fp8|i8|int8|f64|double", re.IGNORECASE)
_NARROW_TYPE: Final = pattern(r"^[^<(]*<\s*(__half|half|__nv_bfloat16|c10::Half|double|signed)")
_TF32: Final = pattern(r"tf32|tfloat32|(^|_)s1688(gemm|cudnn|fprop|dgrad|wgrad)", re.IGNORECASE)
_FP32: Final = pattern(
    r"(^|[^a-z0-9]|[a-z0-9]_)sgemm|scudnn|simt_s|f32f32_f32f32_f32|ffma|fmha_cutlass[FB]_f32"
    r"|cijk_[a-z]{4}_[a-z]{4}_s(b|_)|nvjet_\w{0,99}?sss_",
    re.IGNORECASE,
)
_TRIPLE_TF32: Final = pattern(r"fmha_cutlass[FB]_f32_\w{0,99}sm(?:[89]\d|\d{3})")
_FP32_ENGINE: Final = pattern(r"[wd]grad\w{0,99}(engine|alg\d)\w{0,99}<float")
_COPY_TITLES: Final = {
    "h2d": "[CUDA memcpy HtoD]",
    "d2h": "[CUDA memcpy DtoH]",
    "d2d": "[CUDA memcpy DtoD]",
    "h2h": "[CUDA memcpy HtoH]",
    "p2p": "[CUDA memcpy PtoP]",
    "memset": "[CUDA memset]",
}
_UNKNOWN_COPY: Final = "[CUDA memcpy]"


def precision_of(name: str) -> str:
    """Return one of `PRECISIONS`; "" if the name shows no element type."""
    return _precision_of(shortened_numbers(name))


@lru_cache(maxsize=1 << 14)
def _precision_of(name: str) -> str:
    parsed = parse_name(name)
    if found := _library_precision(parsed.identifier):
        return "" if found in ("int8", "fp16") and _MOVES_BYTES.search(parsed.identifier) else found
    functors = [f.replace("::", "_") for f in parsed.functors[:2] if _MATRIX_FUNCTOR.search(f)]
    for functor in functors:
        if found := _library_precision(functor):
            return found
    if parsed.scope.startswith("ck::") and _BHALF.search(parsed.template):
        return "bf16"
    arguments = "" if _VOID_POINTER.search(parsed.arguments) else parsed.arguments
    return (
        _narrowest_type(parsed.template)
        or next(filter(None, map(_blas_precision, (parsed.identifier, *functors))), "")
        or _narrowest_type(arguments)
    )


def _library_precision(identifier: str) -> str:
    """Return the precision in an identifier that follows a library convention; "" if none."""
    if _CUDNN_ATTENTION.search(identifier):
        return ""
    if found := _NVJET.search(identifier):
        return _PRECISION_OF_LETTER.get(found[1], "")
    if found := _TENSILE.search(identifier):
        return _PRECISION_OF_TENSILE.get(found[1]) or _PRECISION_OF_LETTER.get(found[1].lower(), "")
    if (found := _XMMA.search(identifier)) or (found := _FUSED_ATTENTION.search(identifier)):
        return _word_precision(found[1])
    if _FP16_INTO_FP32.search(identifier):
        return "fp16"
    if word := _word_precision(identifier):
        return word
    if found := _SHAPED.search(identifier):
        # Tensor cores do not multiply fp32: accumulation in fp32 without a named type is tf32.
        return "tf32" if found[1] == "s" else _PRECISION_OF_LETTER[found[1]]
    return ""


def _blas_precision(identifier: str) -> str:
    found = _BLAS.search(identifier)
    return _PRECISION_OF_LETTER[found[1].lower()] if found else ""


def _word_precision(text: str) -> str:
    return next((name for name, pattern in _IN_IDENTIFIER if pattern.search(text)), "")


def _narrowest_type(text: str) -> str:
    plain = _TYPE_OF_MODE.sub("", _QUALIFIED.sub("", text))
    return next((name for name, pattern in _TYPES if pattern.search(plain)), "")


def direction_of(name: str) -> str:
    """Return "forward" or "backward"; "" if the name shows neither."""
    parsed = parse_name(name)
    first = [words_of(functor.replace("::", "_")) for functor in parsed.functors[:2]]
    for words in (parsed.words, *first):
        if _BACKWARD.search(words):
            return "backward"
        if _FORWARD.search(words):
            return "forward"
    return ""


class MatrixUnits(StrEnum):
    """Whether a kernel uses tensor or matrix cores."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def matrix_units_of(name: str, activity: Activity) -> MatrixUnits:
    """Return whether a kernel of this name and class uses matrix units; `NO` for other work."""
    if activity not in MATRIX_WORK:
        return MatrixUnits.NO
    parsed = parse_name(name)
    functors = [functor.rpartition("::")[2] for functor in parsed.functors]
    if _is_helper(parsed):
        return MatrixUnits.NO
    applied = " ".join((parsed.scope, parsed.identifier, *functors))
    if _WITH_MATRIX_UNITS.search(applied) or (
        activity is Activity.ATTENTION and _FLASH_ATTENTION.search(applied)
    ):
        return MatrixUnits.YES
    if _WITHOUT_MATRIX_UNITS.search(" ".join((parsed.scope, parsed.identifier, *functors[:1]))):
        return MatrixUnits.NO
    if activity is Activity.GEMM and (
        parsed.identifier == _CUTLASS_3_KERNEL or precision_of(name) in _MATRIX_ONLY_PRECISIONS
    ):
        return MatrixUnits.YES
    return MatrixUnits.UNKNOWN


def _is_helper(parsed: KernelName) -> bool:
    """Return whether a kernel only prepares or finishes matrix work."""
    applied = (words_of(functor.rpartition("::")[2]) for functor in parsed.functors[:2])
    return any(_HELPERS.search(words) for words in (parsed.words, *applied))


def matrix_units(kernels: Table) -> npt.NDArray[np.object_]:
    """Return whether each kernel computes on tensor or matrix cores: yes, no, or unknown."""
    return _by_name(kernels, lambda name, activity: matrix_units_of(name, activity).value)


def precisions(kernels: Table) -> npt.NDArray[np.object_]:
    """Return the element type in the name of each kernel (fp16 …); "" if it shows none."""
    return _by_name(kernels, lambda name, _: precision_of(name))


def element_bytes_of(name: str) -> int:
    """Return the bytes per element of the type in the name of a kernel; 0 if it shows none."""
    if match := _OPAQUE_TYPE.search(name):
        return int(match[1])
    return _ELEMENT_BYTES.get(precision_of(name), 0)


def directions(kernels: Table) -> npt.NDArray[np.object_]:
    """Return "forward" or "backward" for each kernel; "" if its name shows neither."""
    return _by_name(kernels, lambda name, _: direction_of(name))


_MAX_SHORT_NAME_CHARS: Final = 150


def short_name(name: str) -> str:
    """Return a kernel's identifier and its functor: ``elementwise_kernel (MulFunctor)``.

    A longer identifier than `_MAX_SHORT_NAME_CHARS` is cut at its end: identifiers of matrix
    products begin with the layout, precision, and tile.
    """
    parsed = parse_name(name)
    functors = [label for label in parsed.functors if not _LAUNCHERS.search(label)]
    applied = next((label for label in reversed(functors) if _FUNCTOR_NAME.search(label)), "")
    if not applied:
        named = functors if parsed.identifier in _CUTLASS_KERNELS else parsed.lambdas
        applied = next(iter(named), "")
    label = parsed.identifier or name
    if label == "operator" and parsed.scope:  # a plain lambda: use the name of its function
        label = (
            words[-1] if (words := [word for word in parsed.scope.split("::") if word]) else name
        )
    if len(label) > _MAX_SHORT_NAME_CHARS:
        label = f"{label[: _MAX_SHORT_NAME_CHARS - 1]}…"
    return f"{label} ({applied.rpartition('::')[2]})" if applied else label


def _by_name(kernels: Table, value_of: Callable[[str, Activity], str]) -> npt.NDArray[np.object_]:
    """Return ``value_of(name, activity)`` for each kernel, computed once per distinct pair."""
    names, activities = kernels["name"], kernels["activity"]
    n_activities = len(activities.texts)
    pairs = names.codes * n_activities + activities.codes
    place, distinct = places_of(pairs)
    values = np.empty(len(distinct), object)
    for i, pair in enumerate(distinct):
        name, activity = divmod(pair, n_activities)
        values[i] = value_of(names.texts[name], Activity(activities.texts[activity]))
    return place.pick(values)


def wide_precision_of(name: str) -> str:
    """Return "tf32", "3xtf32", or "fp32" if a kernel of this name multiplies in it, otherwise "".

    "3xtf32" is an FP32 multiplication by three TF32 tensor core products, as in memory-efficient
    attention on Ampere and later.
    """
    plain = name.removeprefix("void ")
    wrapped = _CUTLASS_WRAPPER.match(plain)
    identifier = wrapped["wrapped"] if wrapped else _FROM_BRACKET.sub("", plain)
    if _NARROWER.search(_TF32.sub("", identifier)) or _NARROW_TYPE.match(plain):
        return ""
    if _TF32.search(identifier):
        return "tf32"
    if _TRIPLE_TF32.search(identifier):
        return "3xtf32"
    return "fp32" if _FP32.search(identifier) or _FP32_ENGINE.search(plain) else ""


def copy_titles(copies: Table) -> Names:
    """Return the title of each copy and memset; unified memory migrations have their own titles."""
    directions = copies["direction"]
    plain = [_COPY_TITLES.get(direction, _UNKNOWN_COPY) for direction in directions.texts.tolist()]
    titles = [*plain, *(title.replace("CUDA", "CUDA Unified Memory") for title in plain)]
    is_managed = (copies["src_kind"] == "managed") & (copies["dst_kind"] == "managed")
    return Names.coded(titles, directions.packed + len(plain) * is_managed.astype(np.int64))
