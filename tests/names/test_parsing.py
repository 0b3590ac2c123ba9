"""Names of kernels taken apart."""

from __future__ import annotations

import pytest

from traceprof.names.parsing import parse_name, shortened_numbers, words_of


@pytest.mark.parametrize(
    ("name", "scope", "identifier"),
    [
        ("ampere_sgemm_128x64_tn", "", "ampere_sgemm_128x64_tn"),
        (
            "void at::native::reduce_kernel<512, 1, ReduceOp<float>>(X<int>)",
            "at::native",
            "reduce_kernel",
        ),
        ("void (anonymous namespace)::softmax_warp<float>(float*)", "", "softmax_warp"),
        ("void <unnamed>::index<float, (int)4>(const long *)", "", "index"),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(long)",
            "vllm",
            "fused_add_rms_norm_kernel",
        ),
        ("Im3d2Col.kd", "", "Im3d2Col"),
        ("quantize_q8_1(float const*) (.kd)", "", "quantize_q8_1"),
        ("void a::run<b>(c) [clone .kd]", "a", "run"),
        ("Memcpy HtoD (Pinned -> Device)", "", "Memcpy HtoD"),
        ("void cut::short_name<std::array<int, 4", "cut", "short_name"),
        ("_ZN2at6native9my_kernelIfEEvPT_", "at::native", "my_kernel"),
        ("_Znot mangled", "", "_Znot mangled"),
        ("_Z3\ud800", "", "_Z3\ud800"),
        ("", "", ""),
    ],
)
def test_scope_and_identifier(name: str, scope: str, identifier: str) -> None:
    taken = parse_name(name)
    assert (taken.scope, taken.identifier) == (scope, identifier)


def test_functors_are_what_stands_outside_of_round_brackets() -> None:
    name = "void k<4, impl<at::copy(at::Iter&)::{lambda()#1}::operator()() const>, float>(int)"
    assert parse_name(name).functors == ("impl", "at::copy")
    assert parse_name(name).arguments == "int"


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("RMSNormKernel", "rms norm kernel"),
        ("EigenMetaKernel", "eigen meta kernel"),
        ("bn_fw_tr_1C11_kernel_NCHW", "bn fw tr 1 c11 kernel nchw"),
        ("nchwToNhwcKernel", "nchw to nhwc kernel"),
        ("_attn_fwd", "attn fwd"),
    ],
)
def test_words(identifier: str, words: str) -> None:
    assert words_of(identifier) == words


@pytest.mark.parametrize(
    ("name", "shortened"),
    [
        ("triton_poi_fused_add_123456", "triton_poi_fused_add_1256"),
        ("void run<64, 1048576>(int)", "void run<64, 1076>(int)"),
        ("gemm_1024x98765", "gemm_1024x98765"),
        ("ampere_bf16_s16816gemm_bf16_128x128", "ampere_bf16_s16816gemm_bf16_128x128"),
        ("_Z100012kernel_123456v", "_Z100012kernel_123456v"),
    ],
)
def test_of_long_numbers_the_outer_digits_are_kept(name: str, shortened: str) -> None:
    assert shortened_numbers(name) == shortened
