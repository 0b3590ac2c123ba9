from tests.builders import TraceBuilder
from tests.running import run


def test_ranges_know_what_is_their_own() -> None:
    trace = TraceBuilder().range("outer", 0, 100).range("inner", 10, 40).range("inner", 50, 60)
    table = run("ranges", trace.build()).to_frame().set_index("name")
    assert table["total_ns"].to_dict() == {"outer": 100, "inner": 40}
    assert table["self_ns"].to_dict() == {"outer": 60, "inner": 40}
