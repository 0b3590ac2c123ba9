from tests.builders import TraceBuilder, plain


def test_a_launched_kernel_is_linked_to_its_call() -> None:
    trace = TraceBuilder().kernel("gemm", 120, 180, launched_ns=(10, 15), thread=3).build()
    assert plain(trace.kernels.to_frame(), "start_ns", "end_ns", "activity") == [(120, 180, "gemm")]
    assert plain(trace.api_calls.to_frame(), "start_ns", "end_ns", "thread") == [(10, 15, 3)]
    assert (
        trace.kernels.to_frame()["correlation"].tolist()
        == trace.api_calls.to_frame()["correlation"].tolist()
    )
    assert (trace.span.start_ns, trace.span.end_ns) == (10, 180)


def test_depth_counts_the_ranges_open_on_the_thread() -> None:
    trace = (
        TraceBuilder()
        .range("inner", 10, 20)
        .range("outer", 0, 100)
        .range("elsewhere", 5, 50, thread=2)
        .build()
    )
    assert plain(trace.ranges.to_frame(), "name", "depth") == [
        ("outer", 0),
        ("elsewhere", 0),
        ("inner", 1),
    ]


def test_tables_of_one_option_are_recorded_together() -> None:
    trace = TraceBuilder().copy("h2d", 0, 10, n_bytes=5).build()
    assert trace.recorded == {"kernels", "copies", "api_calls", "syncs"}
    assert plain(trace.copies.to_frame(), "src_kind", "dst_kind", "n_bytes") == [
        ("pinned", "device", 5)
    ]


def test_devices_and_processes_may_be_partly_known() -> None:
    trace = TraceBuilder().device(0, "H100").device(1).process(1, rank=3).build()
    assert plain(trace.devices.to_frame(), "device", "name", "used") == [
        (0, "H100", 0),
        (1, "GPU", 0),
    ]
    assert plain(trace.processes.to_frame(), "process", "rank", "world_size") == [(1, 3, -1)]
