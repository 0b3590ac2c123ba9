"""The kernels of the generated job: names as PyTorch, cuBLAS and NCCL give them, and launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["VARIANTS", "Kernel"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One distinct kernel: its three names, its typical length and how it is launched."""

    demangled: str
    short: str
    mangled: str
    mean_ns: int
    registers: int
    grid: tuple[int, int]
    block: int
    static_bytes: int = 0
    dynamic_bytes: int = 0


_BF16: Final = "c10::BFloat16"
_TILES: Final = (
    "192x192_64x4_2x1_v",
    "192x208_64x4_1x1_h",
    "128x256_64x5_2x1_v",
    "96x64_64x10_1x2_h",
)


def _mangled(space: str, short: str, rest: str) -> str:
    return f"_ZN2at6native{len(space)}{space}{len(short)}{short}I{rest}EEvT0_PKT_S6_S6_PS3_S7_PS4_"


def _elementwise(functor: str, mean_ns: int, arrays: int = 3) -> list[Kernel]:
    """Return an elementwise kernel of PyTorch, vectorized and not."""
    return [
        Kernel(
            f"void at::native::{short}<(int){width}, at::native::{functor}, std::array<char *, "
            f"(unsigned long){arrays}>>(int, T2, T3)",
            short,
            _mangled("_GLOBAL__N__21739cd4", short, f"Li{width}E{len(functor)}{functor}"),
            mean_ns * 3 // (width - 1),
            18 + 8 * (width == 2),
            (93600 // width, 1),
            128,
        )
        for short, width in (
            ("vectorized_elementwise_kernel", 4),
            ("unrolled_elementwise_kernel", 2),
        )
    ]


def _copy(target: str, mean_ns: int) -> Kernel:
    """Return the cast of autocast, whose name is mostly lambdas."""
    inner = "::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda"
    functor = (
        "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]"
        f"{inner}({target}) (instance 1)]"
    )
    return Kernel(
        f"void at::native::elementwise_kernel<(int)128, (int)4, void at::native::"
        f"gpu_kernel_impl_nocast<{functor}>(at::TensorIteratorBase &, const T1 &)::[lambda(int) "
        "(instance 1)]>(int, T3)",
        "elementwise_kernel",
        "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_"
        f"copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE10_clEvEUl{target}E_EEvS4_",
        mean_ns,
        32,
        (93600, 1),
        128,
    )


def _gemms(layout: str, mean_ns: int) -> list[Kernel]:
    """Return the tilings among which cuBLAS chooses for one shape."""
    names = [f"nvjet_tst_{tile}_bz_coopB_{layout}" for tile in _TILES]
    return [
        Kernel(name, name, name, mean_ns + 4000 * i, 168, (132, 1 + i), 384, 0, 229376)
        for i, name in enumerate(names)
    ]


def _flash(which: str, mean_ns: int) -> list[Kernel]:
    short = f"flash_{which}_kernel"
    return [
        Kernel(
            f"void flash::{short}<Flash_{which}_kernel_traits<(int)128, (int)128, (int)64, (int)4, "
            f"(bool)0, (bool)0, cutlass::bfloat16_t>, (bool)0, (bool)1, (bool)0>(flash::Flash_"
            f"{which}_params)",
            short,
            f"_ZN5flash{len(short)}{short}I23Flash_{which}_kernel_traitsILi128ELi128ELi64ELi4ELb0E",
            mean_ns,
            255,
            (16, 32),
            256,
            0,
            98304,
        )
    ]


def _reduction(name: str, mean_ns: int) -> list[Kernel]:
    return [
        Kernel(
            f"void at::native::{name}<float, float, (bool)0>(int, T2, const T1 *, T1 *)",
            name,
            _mangled("_GLOBAL__N__49f7391c", name, "ffLb0"),
            mean_ns,
            40,
            (2048, 1),
            512,
            1024,
        )
    ]


def _multi_tensor(functor: str, mean_ns: int) -> list[Kernel]:
    short = "multi_tensor_apply_kernel"
    return [
        Kernel(
            f"void at::native::{short}<at::native::TensorListMetadata<(int)4>, at::native::"
            f"{functor}<float>, float, double>(T1, T2, T3...)",
            short,
            _mangled("_GLOBAL__N__db5c21bb", short, f"NS1_18TensorListMetadataILi4E{functor}"),
            mean_ns,
            64,
            (320, 1),
            512,
        )
    ]


def _nccl(operation: str, mean_ns: int) -> list[Kernel]:
    short = f"ncclDevKernel_{operation}_RING_LL"
    arguments = "ncclDevKernelArgsStorage<(unsigned long)4096>"
    return [
        Kernel(
            f"{short}({arguments})",
            short,
            f"_Z{len(short)}{short}24ncclDevKernelArgsStorageILm4096EE",
            mean_ns,
            96,
            (24, 1),
            544,
            23552,
        )
    ]


VARIANTS: Final[Mapping[str, Sequence[Kernel]]] = {
    "embedding": _reduction("indexSelectLargeIndex", 60_000),
    "layer_norm": _reduction("vectorized_layer_norm_kernel", 34_000),
    "layer_norm_backward": _reduction("layer_norm_grad_input_kernel_vectorized", 48_000),
    "gamma_beta": _reduction("GammaBetaBackwardCUDAKernelTemplate", 30_000),
    "gemm_qkv": _gemms("bias_TNN", 105_000),
    "gemm_projection": _gemms("TNN", 52_000),
    "gemm_up": _gemms("bias_TNT", 130_000),
    "gemm_down": _gemms("bias_NNT", 128_000),
    "gemm_data": _gemms("NNN", 110_000),
    "gemm_weight": _gemms("NTN", 112_000),
    "attention": _flash("fwd", 170_000),
    "attention_backward": _flash("bwd_dq_dk_dv_loop_seqk_parallel", 360_000),
    "cast_bf16": [_copy("float", 12_000), _copy("double", 14_000)],
    "cast_f32": [_copy("c10::BFloat16", 11_000)],
    "add": _elementwise(f"CUDAFunctor_add<{_BF16}>", 14_000),
    "mul": _elementwise(f"BinaryFunctor<{_BF16}, {_BF16}, {_BF16}, MulFunctor<float>>", 15_000),
    "fill": _elementwise("FillFunctor<float>", 4_000, 1),
    "dropout": _elementwise("fused_dropout_kernel_vec_functor<float, float>", 17_000),
    "gelu": _elementwise("GeluCUDAKernelImpl_functor<float>", 22_000, 2),
    "gelu_backward": _elementwise("GeluBackwardCUDAKernelImpl_functor<float>", 29_000),
    "softmax": _reduction("cunn_SoftMaxForward", 140_000),
    "softmax_backward": _reduction("cunn_SoftMaxBackward", 150_000),
    "loss": _reduction("nll_loss_forward_reduce_cuda_kernel_2d", 6_000),
    "loss_backward": _reduction("nll_loss_backward_reduce_cuda_kernel_2d", 6_000),
    "sum": _reduction("reduce_kernel", 16_000),
    "norm": _multi_tensor("LpNormFunctor", 70_000),
    "clip": _multi_tensor("BinaryOpScalarTensorFunctor", 60_000),
    "adam": _multi_tensor("FusedAdamMathFunctor", 210_000),
    "reduce_scatter": _nccl("ReduceScatter_Sum_bf16", 380_000),
    "all_gather": _nccl("AllGather", 240_000),
    "all_reduce": _nccl("AllReduce_Sum_f32", 45_000),
}
"""Every use of a kernel, and the distinct kernels among which layers choose."""
