"""Training on the host alone: passes that no range names are found from operators, and told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.builders import TraceBuilder
from tests.formats import kineto_file
from tests.formats.kineto_file import complete
from tests.running import run
from traceprof.formats.runs.files import open_run
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.session.answer import page
from traceprof.session.run import open_run as open_session

US = 1_000
AUTOGRAD = "autograd::engine::evaluate_function: MmBackward0"
STEP_US = 1_000


def trained(n_steps: int) -> Trace:
    """Steps of 1 ms: 100 µs of data, 300 forward, 400 backward, 50 and 100 of the optimizer."""
    builder = TraceBuilder()
    for step in range(n_steps):
        at = step * STEP_US
        builder.range(f"ProfilerStep#{step}", at * US, (at + STEP_US) * US)
        for name, start, end in (
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100),
            ("Optimizer.zero_grad#SGD.zero_grad", 410, 460),
            ("Optimizer.step#SGD.step", 880, 980),
        ):
            builder.range(name, (at + start) * US, (at + end) * US)
        operators = {
            "aten::mm": (100, 200),
            "aten::relu": (250, 400),
            "aten::ones_like": (461, 465),
            AUTOGRAD: (470, 600),
            f"{AUTOGRAD} 2": (700, 870),
            "aten::copy_": (10, 90),
        }
        for name, (start, end) in operators.items():
            builder.host_op(name, (at + start) * US, (at + end) * US, source="cpu_op")
    return builder.build(recorded={"host_ops", "ranges"})


def phases_of(trace: Trace) -> dict[str, int]:
    rows = run("phases", trace).table.rows()
    return {row["phase"]: row["host_ns"] // US for row in rows}


def test_passes_are_found_from_operators() -> None:
    found = phases_of(trained(3))
    assert found["data"] == 300
    assert found["optimizer"] == 450
    assert found["backward"] == 3 * 400  # from the first to the last operator of autograd
    assert found["forward"] == 3 * 300  # not what `backward` does before that
    assert sum(found.values()) == 3_000


def test_evaluation_is_no_forward_pass() -> None:
    """After it data is fetched again before anything is differentiated."""
    builder = TraceBuilder().range("Optimizer.step#SGD.step", 880, 980)
    builder.range("enumerate(DataLoader)#x", 300, 400)
    builder.host_op("aten::mm", 100, 200, source="cpu_op")  # of an evaluation
    builder.host_op("aten::mm", 450, 500, source="cpu_op")
    builder.host_op(AUTOGRAD, 600, 700, source="cpu_op")
    trace = builder.build(recorded={"host_ops", "ranges"})
    (row,) = (one for one in run("phases", trace).table.rows() if one["phase"] == "forward")
    assert row["host_ns"] == 50


def test_work_before_a_pause_is_no_forward_pass() -> None:
    """A function that makes the batch runs operators, too, and long code between them."""

    def forward_ms(pause_ms: int) -> float:
        builder = TraceBuilder().range("Optimizer.step#SGD.step", 980 * 1000 * US, 990 * 1000 * US)
        ms = 1000 * US
        for start in (0, pause_ms + 10):  # of the batch, then of the model
            for at in range(start, start + 10, 2):
                builder.host_op("aten::mm", at * ms, (at + 1) * ms, source="cpu_op")
        at = (pause_ms + 30) * ms
        builder.host_op(AUTOGRAD, at, at + 10 * ms, source="cpu_op")
        return phases_of(builder.build(recorded={"host_ops", "ranges"}))["forward"] / 1000

    assert forward_ms(300) == 9
    assert forward_ms(8) == 18 + 9  # no pause is longer than all operators


def test_where_devices_were_recorded_nothing_is_inferred_of_the_host() -> None:
    trace = trained(3)
    with_calls = TraceBuilder().api_call("cudaLaunchKernel", 10, 20).build().api_calls
    tables = {"api_calls": with_calls}
    other = replace(trace.with_tables(tables), recorded=trace.recorded | {"api_calls", "kernels"})
    assert "forward" not in phases_of(other)


def write_cycle(path: Path, first: int, begins_ns: int, **header: object) -> Path:
    """Write a cycle of four steps of a torch.profiler without devices."""
    events = []
    for step in range(first, first + 4):
        at = begins_ns + (step - first) * STEP_US * US
        events.append(complete("user_annotation", f"ProfilerStep#{step}", at, at + 990 * US))
        for name, start, end in (
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100),
            ("Optimizer.step#SGD.step", 800, 980),
        ):
            events.append(complete("user_annotation", name, at + start * US, at + end * US))
        for name, start, end in (
            ("aten::mm", 100, 400),
            ("aten::add", 400, 500),
            (AUTOGRAD, 500, 800),
        ):
            events.append(complete("cpu_op", name, at + start * US, at + end * US))
    return kineto_file.write(path, events, baseTimeNanoseconds=10**18, **header)


def test_a_page_is_about_the_host(tmp_path: Path) -> None:
    path = write_cycle(tmp_path / "a.json", 0, 0)
    document = page(open_session([path]))
    assert document.verdict is not None
    said = " ".join(map(note_text, document.verdict.sentences))
    # 400, 300 and 180 of 1 000 µs; the last of four steps has no next one, and does not count.
    assert "CPU time per step of 1.00 ms: forward 40.0%, backward 30.0%, optimizer 18.0%" in said
    # Of 4 · (300 + 100 + 300) µs of operators.
    assert "Operator self time: aten::mm 42.9%" in said
    assert "aten::add 14.3%" in said


def test_ranks_that_ran_at_once_stay_ranks(tmp_path: Path) -> None:
    for number in range(2):
        write_cycle(tmp_path / f"worker{number}.json", 0, number)
    assert [one.rank for one in open_run([tmp_path]).members] == [0, 1]
    for number in range(2):
        write_cycle(tmp_path / f"x{number}.json", 0, number)
        (tmp_path / f"worker{number}.json").unlink()
    assert len(open_run([tmp_path]).members) == 2
