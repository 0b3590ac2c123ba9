import pandas as pd

from tests.builders import TraceBuilder, plain
from tests.running import run


def test_classes_by_phase() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 100)
        .kernel("s16816gemm", 1000, 61_000, launched_ns=(10, 14))
        .kernel("sgemm", 61_000, 81_000, launched_ns=(20, 26))
        .kernel("relu_elementwise", 81_000, 85_000, launched_ns=(200, 202))
        .build()
    )
    classes = run("classes", trace)
    columns = ("activity", "phase", "count", "total_ns", "short_ratio", "launch_ns")
    assert plain(classes.table, *columns) == [
        ("gemm", "forward", 2, 80_000, 0.0, 10),
        ("elementwise", "outside any phase", 1, 4000, 1.0, 2),
    ]
    assert classes.table["share_ratio"].tolist() == [80 / 84, 4 / 84]
    assert classes.table.to_frame()["tensor_core_ratio"][0] == 0.75
    assert pd.isna(classes.table.to_frame()["tensor_core_ratio"][1])
    short, tensor_cores = classes.notes
    assert short.text.startswith("{share:ratio} of the kernels are shorter than {short:ns}. ")
    assert short.values == {"share": 1 / 3, "short": 10_000, "launch": 12}
    assert tensor_cores.text.startswith("GEMM, convolution, and attention kernels spend {share:")
    assert tensor_cores.values == {"share": 0.75}


def test_without_phases_there_is_no_phase() -> None:
    trace = TraceBuilder().kernel("sgemm", 0, 10).build()
    assert run("classes", trace).table["phase"].tolist() == [""]


def test_no_kernels_make_no_classes() -> None:
    trace = TraceBuilder().build(recorded=["kernels"])
    classes = run("classes", trace)
    assert (len(classes.table), classes.notes) == (0, ())
