from tests.builders import TraceBuilder
from tests.running import run
from traceprof.model.ranks import Ranks


def test_work_and_calls_are_summed_by_name_with_shares_of_their_kind() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 0, 30, launched_ns=(0, 4))
        .kernel("a", 30, 40, launched_ns=(4, 10))
        .copy("d2d", 40, 60, n_bytes=8)
        .memset(60, 100)
        .build()
    )
    table = run("summary", trace).to_frame()
    assert table[["kind", "name", "total_ns", "count", "share_ratio"]].values.tolist() == [
        ["GPU activities", "[CUDA memset]", 40, 1, 0.4],
        ["GPU activities", "a", 40, 2, 0.4],
        ["GPU activities", "[CUDA memcpy DtoD]", 20, 1, 0.2],
        ["API calls", "cudaLaunchKernel", 10, 2, 1.0],
    ]
    of_a = table.iloc[1]
    assert (of_a["mean_ns"], of_a["median_ns"], of_a["min_ns"], of_a["max_ns"]) == (20, 20, 10, 30)
    assert of_a["deviation_ns"] == 200**0.5
    assert table["deviation_ns"].tolist()[0] == 0


def test_the_deviation_is_that_of_all_ranks_together() -> None:
    parts = [TraceBuilder().kernel("a", 0, length).build() for length in (10, 30)]
    table = run("summary", Ranks(tuple(parts), parts[0].info)).to_frame()
    assert table[["total_ns", "count", "deviation_ns"]].values.tolist() == [[40, 2, 200**0.5]]
