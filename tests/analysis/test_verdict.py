from tests.builders import TraceBuilder
from tests.training import MS, Training
from traceprof.analysis.advice.verdict import measure_verdict
from traceprof.session.selection import select
from traceprof.model.window import TimeWindow


def test_where_how_steady_and_what_next() -> None:
    trace = Training(data_ns=20 * MS).build()
    verdict = measure_verdict(trace.within(select(trace, None).window))
    # The device is one step behind: 23 times 10 ms of kernels lie in the 24 steps.
    assert verdict.where == "A step of 20.41 ms goes to 52.2 % idle, 47.0 % compute."
    assert verdict.steadiness == (
        "24 steps, steady: 80 % of them take 20.41 ms to 20.41 ms; 1568 samples/s."
    )
    assert verdict.findings[0].rule == "input_bound"
    assert verdict.next_command == "traceprof steps TRACE"


def test_the_next_command_looks_at_the_worst_place() -> None:
    trace = Training(stalls_ns=dict.fromkeys(range(24), 20 * MS)).build()
    verdict = measure_verdict(trace.within(select(trace, None).window))
    assert verdict.next_command == f"traceprof gaps TRACE --window '{verdict.findings[0].window}'"
    assert select(trace, verdict.findings[0].window).window.duration_ns > 5 * MS


def test_a_healthy_loop_is_shown_its_kernels() -> None:
    verdict = measure_verdict(Training().build())
    assert verdict.findings == ()
    assert verdict.next_command == "traceprof kernels TRACE"


def test_without_devices_the_phases_of_the_host_answer() -> None:
    trace = (
        TraceBuilder()
        .phase("data", 0, 10)
        .phase("forward", 10, 50)
        .phase("backward", 50, 90)
        .build(span=(0, 100))
    )
    verdict = measure_verdict(trace)
    assert verdict.where == (
        "The window goes to 40.0 % forward, 40.0 % backward, 10.0 % data, "
        "10.0 % code outside any phase on the host."
    )
    assert verdict.steadiness == ""


def test_nothing_recorded_says_nothing() -> None:
    verdict = measure_verdict(TraceBuilder().build().within(TimeWindow(0, 10)))
    assert (verdict.where, verdict.steadiness, verdict.findings) == ("", "", ())
    assert verdict.next_command == "traceprof ranges TRACE"
