from tests.builders import TraceBuilder
from tests.running import run


def test_operators_are_ranked_by_self_time() -> None:
    trace = TraceBuilder().host_op("linear", 0, 100).host_op("addmm", 5, 95).build()
    table = run("ops", trace).to_frame()
    assert table[["name", "self_ns", "total_ns"]].values.tolist() == [
        ["addmm", 90, 90],
        ["linear", 10, 100],
    ]
    assert table["self_ratio"].tolist() == [0.9, 0.1]
