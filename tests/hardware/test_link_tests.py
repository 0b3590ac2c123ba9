"""The output of nccl-tests as peaks of collectives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.errors import UsageError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.hardware.catalogue import built_in_hardware
from traceprof.hardware.link_tests import measured_peak, parse_link_tests
from traceprof.model.trace import Trace
from traceprof.session.opening import open_ranks
from traceprof.session.options import Opening

HEAD = "# nThread 1 nGpus {n} minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5\n"
COLUMNS = """#                                           out-of-place                     in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
"""  # noqa: E501 (as the program prints it)


def output(n: int, rows: list[tuple[int, float, float]], command: str = "") -> str:
    ranks = "".join(
        f"#  Rank  {i} Group  0 Pid  {9 + i} on node1 device  {i} [0x1b] NVIDIA H100\n"
        for i in range(n)
    )
    lines = "".join(
        f"{size:12}  {size // 4:12}     float     sum      -1    840.36   19.96   {out:.2f}       0"
        f"   841.25   19.94   {within:.2f}       0\n"
        for size, out, within in rows
    )
    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100.0\n"
    return f"{command}{HEAD.format(n=n)}{ranks}{COLUMNS}{lines}{end}"


ROWS = [(1 << 20, 40.0, 41.0), (1 << 24, 200.0, 199.0), (1 << 28, 400.0, 390.0)]
COMMAND = "$ ./build/all_reduce_perf -b 1M -e 256M -f 16 -g 8\n"
ENDED = "# Collective test concluded: all_reduce_perf\n"


@pytest.mark.parametrize("text", [output(8, ROWS, COMMAND), output(8, ROWS) + ENDED])
def test_rates_by_size(text: str) -> None:
    (test,) = parse_link_tests(text)
    assert (test.op, test.n_ranks) == ("all_reduce", 8)
    assert test.rates == ((1 << 20, 41e9), (1 << 24, 200e9), (1 << 28, 400e9))
    assert test.rate_at(1000) == 41e9
    assert test.rate_at(1 << 26) == pytest.approx(300e9)
    assert test.rate_at(1 << 40) == 400e9


def test_several_tests_in_one_file() -> None:
    other = output(4, ROWS[:1], "$ ./alltoall_perf -g 4\n")
    tests = parse_link_tests(output(8, ROWS, COMMAND) + ENDED + other)
    assert [(test.op, test.n_ranks) for test in tests] == [("all_reduce", 8), ("all_to_all", 4)]
    assert measured_peak(tests, "all_reduce", 4, 1e6) is None
    assert measured_peak(tests, "all_gather", 8, 1e6) is None


def test_a_test_without_its_name_is_refused() -> None:
    with pytest.raises(UsageError, match="add the command line"):
        parse_link_tests(output(8, ROWS))


def test_collectives_are_compared_with_the_measured_rate_at_their_size() -> None:
    builder = TraceBuilder()
    for i, size in enumerate((1 << 20, 1 << 28)):
        at = i * 2_000_000
        builder.collective("all_reduce", at, at + 5, n_bytes=size, group_size=8, correlation=i + 1)
        builder.kernel("ncclDevKernel_AllReduce", at, at + 1_000_000, correlation=i + 1)
    for device in range(8):
        builder.device(device, "NVIDIA H100 80GB HBM3")
    trace: Trace = builder.build()
    hardware = built_in_hardware()
    given = type(hardware)(hardware.gpus, tests=parse_link_tests(output(8, ROWS, COMMAND)))
    rows = run("collectives", trace.with_hardware(given)).to_frame()
    peaks = dict(zip(rows["size_bytes"], rows["peak_bytes_per_s"], strict=True))
    assert peaks == {1 << 20: 41e9, 1 << 28: 400e9}
    result = run("collectives", trace.with_hardware(given))
    assert any("nccl-tests" in str(note.values.get("link")) for note in result.notes)
    plain = run("collectives", trace).to_frame()
    assert set(plain["peak_bytes_per_s"]) == {450e9}


def test_the_option_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nccl.txt"
    path.write_text(output(8, ROWS, COMMAND))
    trace = tmp_path / "trace.sqlite"
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), trace)
    ranks, _ = open_ranks([trace], Opening(link_from=path), frozenset({"kernels"}))
    hardware = ranks.parts[0].hardware
    assert hardware is not None
    assert hardware.tests[0].op == "all_reduce"
