import pytest

from tests.builders import TraceBuilder
from traceprof.errors import NotRecordedError
from traceprof.measures.steps.from_ranges import how_to_record_steps
from traceprof.model.ranks import Ranks
from traceprof.model.tables import empty_table
from traceprof.model.trace import TraceInfo, make_trace


def test_what_was_recorded_with_traceprof_is_not_told_to_be():
    foreign = TraceBuilder().kernel("k", 0, 5).build()
    assert how_to_record_steps(Ranks.of(foreign)).startswith("record with `traceprof record`")
    own = TraceBuilder().phase("eval", 0, 5).build()
    assert "--step-from" in how_to_record_steps(Ranks.of(own))


@pytest.mark.parametrize(
    ("profiler", "recorded", "expected"),
    [
        ("traceprof", {"samples"}, "the program did not use torch"),
        ("NVIDIA Nsight Systems", {"collectives", "samples"}, "the program did not use torch"),
        ("NVIDIA Nsight Systems", {"samples"}, "record with `traceprof record`"),
    ],
)
def test_a_program_that_named_nothing_is_told_how(profiler, recorded, expected):
    info = TraceInfo(format="nsys", profiler=profiler)
    trace = make_trace(info, {name: empty_table(name) for name in recorded}, recorded)
    with pytest.raises(NotRecordedError, match=f"no ranges recorded: {expected}"):
        trace.require("ranges")
