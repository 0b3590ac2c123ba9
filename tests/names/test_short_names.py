"""Names of kernels as sentences tell them."""

import pytest

from traceprof.names.kernels import short_name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, "
            "at::native::MulFunctor<float>>, std::array<char*, 3ul>>(int, T2, T3)",
            "vectorized_elementwise_kernel (MulFunctor)",
        ),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
            "at::native::(anonymous namespace)::neg_kernel_cuda(at::TensorIteratorBase&)::"
            "{lambda()#1}::operator()() const::{lambda(long)#1}>(at::TensorIteratorBase&)>(int)",
            "elementwise_kernel (neg_kernel_cuda)",
        ),
        # Lambdas, as nvcc and as nsys write them, are of the function around them.
        (
            "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl("
            "at::TensorIteratorBase &)::[lambda() (instance 1)]::operator ()() const::"
            "[lambda(long) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)",
            "vectorized_elementwise_kernel (GeluCUDAKernelImpl)",
        ),
        (
            "void <unnamed>::par_ranged<build_field(globals &)::[lambda(long) (instance 1)]>(T1)",
            "par_ranged (build_field)",
        ),
        ("void thrust::for_each<main::{lambda(long)#1}>(int)", "for_each (main)"),
        ("solver::step(float*)::{lambda(int)#2}::operator()(int) const", "step"),
        # Three kernels of one anonymous namespace stay three.
        ("at::native::(anonymous namespace)::softmax_warp(float*)", "softmax_warp"),
        ("void at::native::(anonymous namespace)::cunn_SoftMax<4, float>(float*)", "cunn_SoftMax"),
        ("at::native::<unnamed>::fused_dropout(int)", "fused_dropout"),
        # A wrapper says nothing of itself, a launcher applies what it is given.
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(T1::Params)",
            "Kernel2 (cutlass_80_simt_sgemm_128x256_8x4_nt_align1)",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, "
            "at::native::CUDAFunctorOnSelf_add<float>, std::array<char *, (unsigned long)2>>(int)",
            "vectorized_elementwise_kernel (CUDAFunctorOnSelf_add)",
        ),
        ("_ZN2at6native12_GLOBAL__N_113softmax_warp_ILi4EEEvPf", "softmax_warp_"),
        (
            "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_"
            + "LPA16_" * 30,
            "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_"
            "LPA16_LPA16_LPA16_LPA16_LPA16_LPA16_LPA16_LPA16_LPA16_LPA16_LPA16_LPA16_LPA16…",
        ),
        ("at::native::", "at::native::"),
        ("(odd)", "(odd)"),
        ("", ""),
    ],
)
def test_a_kernel_is_told_by_its_own_name_and_what_it_applies(name: str, short: str) -> None:
    assert short_name(name) == short
