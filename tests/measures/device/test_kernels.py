from tests.builders import TraceBuilder
from tests.running import run


def test_kernels_by_name_the_longest_total_first() -> None:
    trace = TraceBuilder().kernel("b", 0, 4).kernel("a", 4, 14).kernel("b", 20, 22).build()
    table = run("kernels", trace).to_frame()
    assert table[["name", "count", "total_ns", "min_ns", "max_ns"]].values.tolist() == [
        ["a", 1, 10, 10, 10],
        ["b", 2, 6, 2, 4],
    ]
    assert table["share_ratio"].tolist() == [10 / 16, 6 / 16]
    assert table["median_ns"].tolist() == [10, 3]
