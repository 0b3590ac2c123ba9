from tests.builders import TraceBuilder, plain
from tests.running import run
from tests.training import MS, Training
from traceprof.measures.path.path import PATH_PARTS
from traceprof.model.results import Note


def test_the_parts_of_each_step_and_what_bounds_it() -> None:
    trace = Training(data_ns=20 * MS, n_steps=6).build()
    table = run("path", trace).table.to_frame()
    parts = table[[f"{name}_ns" for name in PATH_PARTS]]
    assert (parts.sum(axis=1) == table["duration_ns"]).all()
    assert set(table["bound_by"][:5]) == {"data"}
    assert plain(table, "process", "step")[:2] == [(1, 0), (1, 1)]


def test_without_steps_the_window_is_one_row() -> None:
    table = run("path", TraceBuilder().kernel("a", 0, 10).build()).table.to_frame()
    assert plain(table, "process", "step", "duration_ns", "compute_ns") == [(1, -1, 10, 10)]


def test_without_work_there_is_no_path() -> None:
    path = run("path", TraceBuilder().build(recorded=["kernels", "api_calls"]))
    assert path.table.to_frame().empty
    assert path.notes == (Note("No GPU activity in this window."),)
