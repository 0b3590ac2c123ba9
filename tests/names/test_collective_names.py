"""What names tell of collectives."""

from __future__ import annotations

import pytest

from traceprof.names.messages import CollectiveKind, collective_op, kernel_kind


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("_allgather_base", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("ncclReduceScatter", "reduce_scatter"),
        ("MPI_Iallreduce", "all_reduce"),
        ("all_to_all", "all_to_all"),
        ("all_to_allv", "all_to_all_v"),
        ("ncclSend", "send"),
        ("MPI_Bcast", "broadcast"),
        ("wait", ""),
    ],
)
def test_one_name_for_what_libraries_call_differently(name: str, op: str) -> None:
    assert collective_op(name) == op


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            CollectiveKind("all_reduce", "RING", "LL"),
        ),
        (
            "ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
            CollectiveKind("all_reduce", "TREE", "LL128"),
        ),
        (
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
            CollectiveKind("send_recv", "RING", "SIMPLE"),
        ),
        ("ncclDevKernel_SendRecv(ncclDevComm*)", CollectiveKind("send_recv")),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", CollectiveKind("all_reduce", "RING", "LL")),
        ("ncclDevKernel_AllReduce_Sum_f32_NVLS_TREE", CollectiveKind("all_reduce", "NVLS_TREE")),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", CollectiveKind()),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>(int)",
            CollectiveKind("all_reduce", "multimem"),
        ),
        (
            "void vllm::cross_device_reduce_1stage<half>(int)",
            CollectiveKind("all_reduce", "custom"),
        ),
        ("void deep_ep::internode::dispatch<true>(int)", CollectiveKind("all_to_all_v", "DeepEP")),
        (
            "void mori::moe::EpDispatchIntraNodeKernel<X>(int)",
            CollectiveKind("all_to_all_v", "mori"),
        ),
        ("void a2a_combine_recv_kernel<X>(int)", CollectiveKind("all_to_all_v", "pplx")),
        ("void flashinfer::moe::moeA2ADispatchKernel<X>(int)", CollectiveKind("all_to_all_v")),
        ("kernel_combine_token", CollectiveKind("all_to_all_v")),
    ],
)
def test_a_kernel_tells_operation_algorithm_and_protocol(name: str, kind: CollectiveKind) -> None:
    assert kernel_kind(name) == kind
