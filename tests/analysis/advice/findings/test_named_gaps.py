"""The evidence of findings on idle time: what the host was in, by overlap."""

import pytest

from tests.analysis.advice.findings.found import findings_of
from tests.builders import TraceBuilder, plain
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.named_gaps import names_of_gaps
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

US = 1000
MS = 1000 * US


def compiling() -> Trace:
    """A gap of 100 ms that opens in ``short``, while other threads compile for 80 ms of it."""
    return (
        TraceBuilder()
        .kernel("first", 0, 10 * MS, launched_ns=(0, 10 * US))
        .range("short", 9 * MS, 12 * MS)
        .range("nvrtc, op_id = 1", 20 * MS, 90 * MS, thread=2)
        .range("nvrtc, op_id = 2", 30 * MS, 100 * MS, thread=3)
        .kernel("second", 110 * MS, 120 * MS, launched_ns=(109 * MS, 110 * MS))
        .build(span=(0, 120 * MS))
    )


def test_a_range_is_told_with_its_overlap_and_what_compiled_meanwhile() -> None:
    host = next(own for own in findings_of(compiling()) if own.rule == "host_code")
    assert host.evidence[1:] == (
        "80.00 ms of it in nvrtc on another thread than the one that launches",
        "17.00 ms of it where nothing was recorded",
    )
    assert host.ranges == ("nvrtc",)


def test_only_the_time_asked_about_is_told() -> None:
    context = Context(Ranks.of(compiling()))
    times = {0: Intervals.union_of([0, 95 * MS], [25 * MS, 200 * MS]), 7: Intervals.single(0, MS)}
    charged, beside = names_of_gaps(context, times)
    assert plain(charged, "name", "by", "ns") == [
        ("(nothing recorded)", "", (20 - 12 + 109 - 100) * MS),
        ("nvrtc", "other", (5 + 5) * MS),
        ("short", "launching", 2 * MS),
        ("cudaLaunchKernel", "launching", MS),
    ]
    assert beside == {"nvrtc": 10 * MS}


@pytest.mark.parametrize("devices", [(0, 0), (0, 1)])
def test_what_several_devices_wait_for_counts_for_each(devices: tuple[int, int]) -> None:
    builder = TraceBuilder().range("save", MS, 9 * MS)
    for device in devices:
        builder.kernel("a", 0, MS, launched_ns=(0, 10), device=device)
        builder.kernel("b", 10 * MS, 11 * MS, launched_ns=(9 * MS, 10 * MS), device=device)
    everything = dict.fromkeys(set(devices), Intervals.single(0, 11 * MS))
    charged, _ = names_of_gaps(Context(Ranks.of(builder.build())), everything)
    assert dict(plain(charged, "name", "ns"))["save"] == 8 * MS * len(set(devices))
