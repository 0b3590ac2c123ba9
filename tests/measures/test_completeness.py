"""Work that is missing in a recording is not known: neither idle time nor compute, never fine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.requirements import require
from tests.running import run
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures.lost_work import missing_work
from traceprof.measures.steps.completeness import completeness
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.render.registry import Options, render
from traceprof.session.answer import Document, page
from traceprof.session.cutting import Cutting, cut_run
from traceprof.session.run import open_run

MS = 1_000_000
OF_IDLE = {
    "idle time",
    "kernel launches",
    "graph tracing",
    "CPU work between launches",
    "host synchronization",
    "kernel fusion",
}
LOST = ("gpt-nsys2023.4-lost-kernels.sqlite.gz", "cnn-nsys2023.4-lost-kernels.sqlite.gz")


def launching(n_steps: int, lost: Callable[[int], bool], n_kernels: int = 10) -> TraceBuilder:
    """Steps of 1 ms with kernels of 90 µs, back to back; of some steps the kernels are lost."""
    trace = TraceBuilder()
    for step in range(n_steps):
        start = step * MS
        trace.step(start, start + MS, step)
        for i in range(n_kernels):
            call = (start + i * 5_000, start + i * 5_000 + 4_000)
            if lost(step):
                trace.api_call("cudaLaunchKernel", *call, correlation=100_000 + step * 100 + i)
            else:
                begins = start + 50_000 + i * 90_000
                trace.kernel("gemm", begins, begins + 90_000, launched_ns=call)
    return trace


def n_lost(trace: Trace) -> dict[str, int]:
    return {name: n for name, n in completeness(trace).n_lost.items() if n}


def test_launches_without_their_kernels_are_lost() -> None:
    assert n_lost(launching(10, lambda step: step < 4).build()) == {"kernel": 40}


def test_all_launches_without_a_kernel_are_lost() -> None:
    assert n_lost(launching(4, lambda _: True).build()) == {"kernel": 40}


def test_what_was_still_to_run_at_the_end_is_not_lost() -> None:
    assert n_lost(launching(10, lambda step: step == 9).build()) == {}


def test_each_window_of_the_embedded_recorder_has_such_an_end() -> None:
    trace = launching(6, lambda step: step in (2, 5))
    for start in (0, 3 * MS):
        trace.range("traceprof.window", start, start + 3 * MS - 1, domain=TRACEPROF_DOMAIN)
    assert n_lost(trace.build()) == {}


def part_of(trace: Trace, folder: Path, window: str, cutting: Cutting | None = None) -> Trace:
    """Return the part of a trace that `cut` makes, read from its file."""
    write_nsys(trace, folder / "whole.sqlite")
    run = open_run([folder / "whole.sqlite"]).within(window)
    cut_run(run, folder / "part.sqlite", cutting or Cutting(), force=True)
    return open_run([folder / "part.sqlite"]).within("all").trace()


def test_a_part_is_searched_but_for_its_end(tmp_path: Path) -> None:
    trace = launching(20, lambda step: step in (8, 9)).build()
    assert n_lost(part_of(trace, tmp_path, "6ms..16ms")) == {"kernel": 20}
    assert n_lost(part_of(trace, tmp_path, "0ms..7ms")) == {}
    # All that is in it may have run later.
    assert n_lost(part_of(trace, tmp_path, "8.01ms..8.9ms")) == {}


def test_what_a_part_launched_before_its_end_may_run_after_it(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for i in range(100):  # the host runs 20 ms ahead, more and more
        call, begins = i * 100_000, i * 300_000 + 5_000
        trace.kernel("gemm", begins, begins + 299_000, launched_ns=(call, call + 4_000))
    for window in ("0ms..5ms", "3ms..9ms", "5ms..10ms", "9ms..20ms"):
        assert n_lost(part_of(trace.build(), tmp_path, window)) == {}


def test_a_part_of_some_devices_lacks_the_work_of_the_others(tmp_path: Path) -> None:
    trace = TraceBuilder().device(0, "H100").device(1, "H100")
    for i in range(40):
        at = i * MS
        trace.kernel("gemm", at + 50, at + 900, launched_ns=(at, at + 20), device=i % 2)
    assert n_lost(part_of(trace.build(), tmp_path, "5ms..35ms", Cutting(devices=[0]))) == {}


@pytest.mark.traces
@pytest.mark.parametrize(
    "name",
    [
        *("kineto/2021-resnet50.json.gz", "kineto/2025-mi300x-rccl.json.gz"),
        *("h100/gpt-embedded.sqlite.gz", "nsys/2025.1-llm-17k-kernels.sqlite"),
    ],
)
def test_parts_of_whole_recordings_lack_nothing(name: str, tmp_path: Path) -> None:
    path = Path(require("traces")) / name
    out = tmp_path / ("part.json" if "kineto" in name else "part.sqlite")
    for window in ("5%..20%", "33%..40%", "50%..52%", "60%..90%"):
        cut_run(open_run([path]).within(window), out, Cutting(), force=True)
        assert missing_work(open_run([out]).within("all").of_ranks()) == ()


def test_launches_that_a_stream_captures_have_no_work() -> None:
    trace = launching(10, lambda step: step == 2)
    trace.api_call("cudaStreamBeginCapture", 2 * MS - 9, 2 * MS - 5)
    trace.api_call("cudaStreamEndCapture", 3 * MS - 9, 3 * MS - 5)
    assert n_lost(trace.build()) == {}


def test_the_drivers_call_inside_that_of_the_runtime_is_none_of_its_own() -> None:
    trace = launching(4, lambda _: False)
    trace.api_call("cuLaunchKernel", 1_000, 2_000, correlation=99_999)
    assert n_lost(trace.build()) == {}


def test_single_copies_without_a_record_are_none() -> None:
    trace = launching(4, lambda _: False)
    for i in range(20):
        trace.copy("h2d", i * 100, i * 100 + 50, n_bytes=4, launched_ns=(i * 100, i * 100 + 9))
    trace.api_call("cudaMemcpyAsync", 50, 60, correlation=99_998)  # of no bytes
    assert n_lost(trace.build()) == {}


def test_memory_that_is_set_without_a_record_is_none_where_all_kernels_are_there() -> None:
    trace = launching(4, lambda _: False)
    for i in range(20):  # as cuDNN does: every other sets no byte
        trace.memset(i * 100, i * 100 + 50, n_bytes=4, launched_ns=(i * 100, i * 100 + 9))
        trace.api_call("cudaMemsetAsync", i * 100 + 50, i * 100 + 55, correlation=99_000 + i)
    assert n_lost(trace.build()) == {}


def test_memory_that_is_set_is_lost_with_kernels() -> None:
    trace = launching(10, lambda step: step == 4)
    for i in range(20):
        at = i * 100_000
        trace.memset(at, at + 50, n_bytes=4, launched_ns=(at, at + 9))
        trace.api_call("cudaMemsetAsync", at + 50, at + 55, correlation=99_000 + i)
    lost = n_lost(trace.build())
    assert lost.keys() == {"kernel", "memset"}
    assert lost["memset"] >= 18  # those of the end were on their way


def test_where_the_file_ties_no_work_to_its_launch_nothing_is_lost() -> None:
    trace = TraceBuilder()
    for i in range(20):
        trace.api_call("cudaLaunchKernel", i * 100, i * 100 + 9, correlation=i + 1)
        trace.kernel("gemm", i * 100 + 20, i * 100 + 90, correlation=1_000 + i)
    assert n_lost(trace.build()) == {}


def test_graphs_belong_to_their_launch() -> None:
    trace = TraceBuilder()
    for i in range(10):
        at = i * MS
        if i in (0, 9):
            for j in range(3):
                trace.kernel("gemm", at + 9 + j * 9, at + 15 + j * 9, correlation=50 + i)
        trace.api_call("cudaGraphLaunch", at, at + 5, correlation=50 + i)
    assert n_lost(trace.build()) == {"graph": 8}


def test_idle_time_is_not_judged_where_most_is_lost() -> None:
    result = run("findings", launching(10, lambda step: step < 9).build())
    assert not result.scalars["is_idle_known"]
    judged = result.tables["checked"]
    fine = {row["subject"] for row in judged.rows() if row["is_fine"]}
    assert not fine & OF_IDLE


def test_without_steps_nothing_is_left_to_judge() -> None:
    trace = TraceBuilder()
    for i in range(100):
        if 20 <= i < 40:
            trace.api_call("cudaLaunchKernel", i * 100, i * 100 + 9, correlation=9_000 + i)
        else:
            trace.kernel("gemm", i * 100 + 10, i * 100 + 100, launched_ns=(i * 100, i * 100 + 9))
    result = run("findings", trace.build())
    assert not result.scalars["is_idle_known"]
    assert result.table.empty


def test_idle_time_is_said_to_hold_what_is_missing() -> None:
    result = run("idle", launching(10, lambda step: step < 4).build())
    assert result.scalars["missing_count"] == 40
    assert "The GPU work of 40 launches is missing from the trace." in note_text(result.notes[0])
    assert run("idle", launching(10, lambda _: False).build()).scalars["missing_count"] == 0


def passes(is_silent: Callable[[int], bool], n_launches: int = 10) -> TraceBuilder:
    trace = TraceBuilder().kernel("first", 100, 200, launched_ns=(1, 2))
    for i in range(10):
        start = (i + 1) * MS
        trace.step(start, start + MS, i)
        trace.range("forward", start, start + MS // 2, domain=TRACEPROF_DOMAIN)
        for j in range(0 if is_silent(i) else n_launches):
            at = start + j * 10_000
            trace.kernel("gemm", at + 50, at + 9_000, launched_ns=(at, at + 20))
    return trace.kernel("last", 12 * MS, 12 * MS + 5, launched_ns=(11 * MS, 11 * MS + 2))


def test_passes_as_long_as_others_without_a_launch_show_that_launches_are_lost() -> None:
    trace = passes(lambda i: i < 6).build()
    assert completeness(trace).n_silent["forward"] == 6
    result = run("findings", trace)
    assert not result.scalars["is_idle_known"]
    assert "although other passes of that length have many launches" in note_text(
        result.tables["lost"]["message"][0]
    )


def test_passes_on_the_host_alone_show_nothing_but_beside_an_older_profiler() -> None:
    trace = passes(lambda _: True)
    assert run("findings", trace.build()).scalars["is_idle_known"]
    older = trace.setting("driver.cuda", "13.0").setting("cuda_runtime", "12.4").build()
    result = run("findings", older)
    assert not result.scalars["is_idle_known"]
    told = [note_text(note) for note in result.tables["lost"]["message"]]
    assert "10 of 10 forward passes have no recorded launch" in told
    assert any("is for CUDA 12.4, but the driver is for CUDA 13.0" in text for text in told)


def test_an_older_profiler_alone_loses_nothing() -> None:
    trace = launching(10, lambda _: False).setting("driver.cuda", "13.0")
    assert run("findings", trace.setting("cuda_runtime", "12.4").build()).scalars["is_idle_known"]


# The inputs of people, and of a real H100.


@cache
def document_of(path: Path) -> Document:
    return page(open_run([path]))


def wild(name: str) -> Document:
    return document_of(Path(require("traces")).parent / "wild" / name)


def told(document: Document) -> str:
    return " ".join(render("text", document, Options(width=2_000)).split())


def parts(document: Document) -> dict[str, float]:
    assert document.verdict is not None
    return {name: round(share, 3) for name, share in document.verdict.parts.items() if share}


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "lost", "compute"),
    [
        ("pytorch192021-dropped-head.json", "48 of 80 kernel launches have no recorded", 0.88),
        ("nsys-kernels-lost.sqlite", "60 of 100 kernel launches have no recorded kernel", 0.9),
    ],
)
def test_steps_that_are_whole_are_judged(name: str, lost: str, compute: float) -> None:
    document = wild(name)
    assert lost in told(document)
    assert "traceprof does not analyze 6 of 10 steps" in told(document)
    assert parts(document)["compute"] == compute
    assert "Give it work from the beginning" not in told(document)
    quality = page_of_quality(document.info.path)
    assert "launches without work" in quality
    assert "steps without work" not in quality


def page_of_quality(path: str) -> list[str]:
    found = open_run([Path(path)]).answers(["quality"], strict=True).results["quality"]
    checks: list[str] = found.table["check"].tolist()
    return checks


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "lost"),
    [
        (
            "launches-no-kernels-at-all.json",
            "kernels were not recorded: 80 launches have no kernel",
        ),
        (
            "hyperloom1047-graph-replays.json",
            "95 of 100 CUDA graph launches have no recorded kernels",
        ),
        ("kineto109-zero-ts.json", "20 of 100 kernel launches have no recorded kernel"),
    ],
)
def test_where_too_little_is_left_nothing_is_said_of_idle_time(name: str, lost: str) -> None:
    document = wild(name)
    verdict = document.verdict
    assert verdict is not None
    assert lost in told(document)
    assert not verdict.parts
    assert not verdict.bound_by
    assert "% idle" not in told(document)
    assert not OF_IDLE & {*verdict.fine}


@pytest.mark.traces
@pytest.mark.parametrize("name", [*LOST, "ddp-gloo-2ranks-nsys2023.4"])
def test_a_profiler_older_than_the_driver_is_named(name: str) -> None:
    document = document_of(Path(require("traces")) / "h100" / name)
    verdict = document.verdict
    assert verdict is not None
    assert not verdict.parts
    assert not verdict.bound_by
    assert not OF_IDLE & {*verdict.fine}
    assert "2023.4.4.54 is for CUDA 12.4, but the driver is for CUDA 13.0" in told(document)
    assert "Host-bound" not in told(document)


@pytest.mark.traces
@pytest.mark.parametrize("name", ["graphs", "gpt", "cnn", "item"])
def test_windows_of_the_embedded_recorder_are_complete(name: str) -> None:
    document = document_of(Path(require("traces")) / "h100" / f"{name}-embedded.sqlite.gz")
    assert document.verdict is not None
    assert not document.verdict.lost
    assert not document.info.warnings


@pytest.mark.traces
def test_what_was_not_recorded_of_a_step_is_not_known() -> None:
    path = Path(require("traces")) / "h100" / "gpt-embedded.sqlite.gz"
    steps = open_run([path]).within("all").answers(["steps"], strict=True).results["steps"].table
    is_seen = ~np.isnan(steps["device_ns"])
    # The recorder had two windows; steps that these cut are not known as a whole.
    assert is_seen.sum() == 10
    assert np.isnan(steps["compute_ns"][~is_seen]).all()
    assert np.isnan(steps["idle_ns"][~is_seen]).all()
    assert (steps["compute_ns"][is_seen] > 0).all()


OF_DEVICES = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("2021-resnet50", 0.0, 0.5),
        ("2025-b200-rank0of8", 0.0, 0.2),
        ("2025-b200-rank0of8", 0.4, 0.6),
    ],
)
def test_events_of_devices_taken_away(name: str, first: float, last: float, tmp_path: Path) -> None:
    whole = Path(require("traces")) / "kineto" / f"{name}.json.gz"
    data: dict[str, Any] = json.loads(gzip.decompress(whole.read_bytes()))
    events = data["traceEvents"]
    work = [i for i, own in enumerate(events) if str(own.get("cat")).lower() in OF_DEVICES]
    work.sort(key=lambda i: events[i]["ts"])
    away = {*work[int(first * len(work)) : int(last * len(work))]}
    data["traceEvents"] = [own for i, own in enumerate(events) if i not in away]
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(data))
    document = page(open_run([path]))
    verdict = document.verdict
    assert verdict is not None
    assert "have no recorded kernel" in told(document)
    assert "Give it work from the beginning" not in told(document)
    if verdict.parts:  # the steps that are whole
        true = page(open_run([whole])).verdict
        assert true is not None
        assert abs(verdict.parts["idle"] - true.parts["idle"]) < 0.15
    else:
        assert not OF_IDLE & {*verdict.fine}
