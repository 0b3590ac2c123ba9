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
        ("", ""),
    ],
)
def test_a_kernel_is_told_by_its_own_name_and_what_it_applies(name: str, short: str) -> None:
    assert short_name(name) == short
