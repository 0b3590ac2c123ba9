from tests.builders import TraceBuilder
from tests.running import run
from traceprof.export.request import check_analyses
from traceprof.model.ranks import Ranks
from traceprof.session.run import run_of


def test_operators_are_ranked_by_self_time() -> None:
    trace = TraceBuilder().host_op("linear", 0, 100).host_op("addmm", 5, 95).build()
    table = run("operators", trace).to_frame()
    assert table[["name", "self_ns", "total_ns"]].values.tolist() == [
        ["addmm", 90, 90],
        ["linear", 10, 100],
    ]
    assert table["self_ratio"].tolist() == [0.9, 0.1]


def test_the_name_that_it_had_before_still_works() -> None:
    trace = TraceBuilder().host_op("aten::mm", 0, 10).build()
    within = run_of(Ranks.of(trace)).within("all")
    expected = within.result("operators").table.to_frame()
    for found in (within.result("ops"), within.ops()):
        assert found.name == "operators"
        assert found.table.to_frame().equals(expected)
    assert check_analyses(["ops"]) == ["operators"]
