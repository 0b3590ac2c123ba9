from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.model.timing import TRACEPROF_DOMAIN, TimeWindow


def test_recorded_layers_by_path_with_self_and_total() -> None:
    trace = (
        TraceBuilder()
        .phase("forward", 0, 100)
        .phase("layer:model.0:Block", 0, 60)
        .phase("layer:model.0.conv:Conv2d", 10, 40)
        .kernel("conv", 200, 230, launched_ns=(20, 25))
        .kernel("relu", 230, 240, launched_ns=(50, 55))
        .copy("h2d", 240, 245, launched_ns=(90, 95))
        .build()
    )
    layers = run("layers", trace)
    assert layers.scalars["source"] == "layers recorded by traceprof"
    columns = ("layer", "type", "count", "host_ns", "host_self_ns", "device_ns", "device_self_ns")
    assert plain(layers.table.to_frame(), *columns) == [
        ("model.0", "Block", 1, 60, 30, 40, 10),
        ("model.0.conv", "Conv2d", 1, 30, 30, 30, 30),
    ]


def test_recursion_counts_once() -> None:
    trace = (
        TraceBuilder()
        .range("block", 0, 100)
        .range("block", 10, 50)
        .kernel("gemm", 200, 230, launched_ns=(20, 25))
        .build()
    )
    columns = ("layer", "count", "host_ns", "host_self_ns", "device_ns", "device_self_ns")
    assert plain(run("layers", trace).table.to_frame(), *columns) == [
        ("block", 2, 100, 100, 30, 30)
    ]


def test_sequence_numbers_tie_backward_work_to_its_layer() -> None:
    engine = "autograd::engine::evaluate_function: AddmmBackward0, seq = 5, op_id = 9"
    trace = (
        TraceBuilder()
        .range("encoder", 0, 50)
        .range("aten::linear, seq = 5, op_id = 1", 10, 20)
        .range("aten::addmm, seq = 5, op_id = 2", 12, 18)
        .range(engine, 100, 150, thread=2)
        .range("AddmmBackward0, seq = 5, op_id = 10", 110, 140, thread=2)
        .kernel("gemm", 200, 230, launched_ns=(13, 14))
        .kernel("dgrad", 230, 280, launched_ns=(120, 125), thread=2)
        .build()
    )
    table = run("layers", trace).table.to_frame().set_index("layer")
    assert table.loc["encoder", ["device_ns", "backward_ns"]].tolist() == [30, 50]
    assert table.loc["aten::addmm", ["device_ns", "backward_ns"]].tolist() == [30, 50]
    assert table.loc["AddmmBackward0", ["device_ns", "backward_ns"]].tolist() == [50, 0]


def test_threads_without_ranges_work_for_the_one_that_calls_backward() -> None:
    trace = (
        TraceBuilder()
        .range("backward", 0, 100)
        .kernel("dgrad", 200, 230, launched_ns=(20, 25), thread=2)
        .build()
    )
    assert plain(run("layers", trace).table.to_frame(), "layer", "device_ns") == [("backward", 30)]


def test_a_window_clips_both_sides() -> None:
    trace = (
        TraceBuilder()
        .range("a", 0, 100)
        .range("b", 100, 200)
        .kernel("gemm", 140, 200, launched_ns=(20, 25))
        .build()
    )
    table = run("layers", trace.within(TimeWindow(150, 300))).table
    columns = ("layer", "count", "host_ns", "device_ns")
    assert plain(table, *columns) == [("a", 0, 0, 50), ("b", 1, 50, 0)]


def test_operators_stand_in_where_nobody_named_layers() -> None:
    trace = (
        TraceBuilder()
        .host_op("aten::linear", 0, 30)
        .host_op("aten::addmm", 10, 25)
        .host_op("read", 0, 30, source="osrt", thread=4)
        .build()
    )
    layers = run("layers", trace)
    assert layers.scalars["source"] == "operators"
    assert plain(layers.table.to_frame(), "layer", "host_ns", "host_self_ns") == [
        ("aten::linear", 30, 15),
        ("aten::addmm", 15, 15),
    ]


def test_without_names_there_are_no_layers() -> None:
    layers = run("layers", TraceBuilder().kernel("gemm", 0, 1).build())
    assert layers.table.to_frame().empty
    assert layers.notes[0].text.startswith("the trace contains no layer names")


def two_levels(*, with_backward: bool) -> TraceBuilder:
    """Return a step of 100 ns on a host: a block of two layers, and a backward pass of 60 ns."""
    own = {"domain": TRACEPROF_DOMAIN}
    builder = TraceBuilder().phase("forward", 5, 30).phase("backward", 35, 95)
    builder.range("layer:block:Block", 8, 28, **own)
    builder.range("layer:block.a:Linear", 10, 16, **own)
    builder.range("layer:block.b:Linear", 16, 20, **own)
    # The loss takes the first 5 ns of the backward pass.
    for path, start, end in (("block", 40, 50), ("block.b", 50, 70), ("block.a", 70, 95)):
        if with_backward:
            name = f"layer.backward:{path}:Linear"
            builder.range(name, start, end, kind="start_end", **own)
    return builder


def test_layers_of_a_host_include_their_backward_pass_and_the_rest_is_a_row() -> None:
    layers = run("layers", two_levels(with_backward=True).build(span=(0, 100)))
    assert plain(layers.to_frame(), "layer", "host_ns", "host_backward_ns") == [
        ("block", 20, 55),
        ("block.a", 6, 25),
        ("block.b", 4, 20),
        # With the outermost layer, it adds up to the window of 100 ns.
        ("outside any layer", 20, 5),
    ]
    assert [note.text for note in layers.notes] == ["Layer names come from {source}."]


def test_a_window_clips_the_backward_pass_of_layers() -> None:
    trace = two_levels(with_backward=True).build(span=(0, 100)).within(TimeWindow(60, 100))
    assert plain(run("layers", trace).to_frame(), "layer", "host_ns", "host_backward_ns") == [
        ("block", 0, 35),
        ("block.a", 0, 25),
        ("block.b", 0, 10),
        ("outside any layer", 5, 0),
    ]


def test_without_the_backward_pass_of_layers_it_is_part_of_the_rest() -> None:
    layers = run("layers", two_levels(with_backward=False).build(span=(0, 100)))
    rows = layers.to_frame()
    assert plain(rows, "layer", "host_ns")[-1] == ("outside any layer", 80)
    assert "host_backward_ns" not in rows
    assert [note.text for note in layers.notes][-1] == (
        "The backward pass was not recorded by layer. It is part of the time outside any layer."
    )


def test_layers_of_a_gpu_have_no_row_of_the_host() -> None:
    builder = two_levels(with_backward=True)
    builder.kernel("gemm", 12, 20, launched_ns=(11, 12))
    assert "outside any layer" not in run("layers", builder.build()).to_frame()["layer"].tolist()
