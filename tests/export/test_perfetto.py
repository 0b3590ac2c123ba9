"""Chrome's trace events: a schema, lanes that nest, arrows, and our own Kineto reader."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest

from tests.builders import TraceBuilder
from traceprof.export import exporter_called
from traceprof.export.chrome_lanes import microseconds
from traceprof.export.request import Request
from traceprof.formats import open_trace
from traceprof.formats.kineto.rows import HOST_SOURCES
from traceprof.formats.nsys import schema
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.ranks import Ranks
from traceprof.model.tables import make_table
from traceprof.model.trace import Trace
from traceprof.session.material import Material
from traceprof.session.run import open_run, run_of

MS = 1_000_000
_TIME = {"type": "number"}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_PLACE = {"pid": _NUMBER, "tid": _NUMBER}
_LENGTH = {"type": "number", "minimum": 0}


def _event(phase: str, required: list[str], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["ph", "pid", "name", *required],
        "properties": {"ph": {"const": phase}, "name": {"type": "string"}, **_PLACE, **more},
    }


SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "baseTimeNanoseconds": {"type": "integer"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    _event("X", ["tid", "cat", "ts", "dur"], ts=_TIME, dur=_LENGTH),
                    _event("i", ["tid", "ts", "s"], ts=_TIME, s={"const": "t"}),
                    _event("s", ["tid", "ts", "id", "cat"], ts=_TIME),
                    _event("f", ["tid", "ts", "id", "cat", "bp"], ts=_TIME, bp={"const": "e"}),
                    _event("C", ["ts", "args"], ts=_TIME),
                    _event("M", ["args"]),
                ]
            },
        },
    },
}
"""What the documentation of the format asks of the phases that are written."""


def builder(rank: int = 0) -> TraceBuilder:
    process = 10 + rank
    made = TraceBuilder().process(process, name="python", rank=rank, world_size=2)
    made.range("step 1", 0, 9 * MS, process=process).mark("epoch", 5, process=process)
    made.kernel('ge"mm\n', MS, 2 * MS + 1, launched_ns=(10, 20), process=process)
    made.kernel("gelu", 3 * MS, 4 * MS, process=process)
    made.copy("h2d", 4 * MS, 5 * MS, n_bytes=2_000_000, launched_ns=(30, 40), process=process)
    return made.memset(6 * MS, 7 * MS, n_bytes=8, process=process)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    write_nsys(builder().build(), tmp_path / "t.sqlite")
    return tmp_path / "t.sqlite"


def export(path: Path, output: Path, **more: Any) -> dict[str, Any]:
    exporter_called("perfetto").load()(open_run([path]), Request(output, **more))
    opener = gzip.open if output.suffix == ".gz" else open
    with opener(output, "rb") as file:
        document: dict[str, Any] = json.load(file)
    jsonschema.validate(document, SCHEMA)
    assert_nested(document)
    return document


def assert_nested(document: dict[str, Any]) -> None:
    """Check that slices of a lane nest: viewers drop what overlaps in part."""
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in of_phase(document, "X"):
        start = round(event["ts"] * 1000)
        span = (start, -(start + round(event["dur"] * 1000)))
        lanes.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in lanes.values():
        is_open: list[int] = []
        for start, end in sorted(spans):
            while is_open and is_open[-1] <= start:
                is_open.pop()
            assert not is_open or -end <= is_open[-1]
            is_open.append(-end)


def of_phase(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def names_of(document: dict[str, Any], kind: str) -> dict[tuple[int, int], Any]:
    return {
        (event["pid"], event["tid"]): next(iter(event["args"].values()))
        for event in of_phase(document, "M")
        if event["name"] == kind
    }


def test_events_have_their_lanes_and_arguments(trace: Path, tmp_path: Path) -> None:
    document = export(trace, tmp_path / "t.json")
    processes = names_of(document, "process_name")
    threads = names_of(document, "thread_name")
    events = {event["name"]: event for event in of_phase(document, "X")}
    kernel, copy = events['ge"mm\n'], events["Memcpy HtoD (Pinned -> Device)"]
    assert (kernel["ts"], kernel["dur"], kernel["cat"]) == (1000, 1000.001, "kernel")
    assert processes[kernel["pid"], 0] == "rank 0 · GPU 0"
    assert threads[kernel["pid"], kernel["tid"]] == "stream 7"
    assert copy["args"]["bytes"] == 2_000_000
    assert copy["args"]["memory bandwidth (GB/s)"] == 2.0
    assert processes[10, 0] == "rank 0 · python · process 10"
    assert events["step 1"]["pid"] == 10
    assert [mark["name"] for mark in of_phase(document, "i")] == ["epoch"]
    order = names_of(document, "process_sort_index")
    assert order[10, 0] < order[kernel["pid"], 0], "a process stands above its devices"


def test_arrows_lead_from_launches_to_their_work(trace: Path, tmp_path: Path) -> None:
    document = export(trace, tmp_path / "t.json")
    starts, ends = of_phase(document, "s"), of_phase(document, "f")
    assert [one["id"] for one in starts] == [one["id"] for one in ends] == [0, 1]
    assert [one["ts"] for one in starts] == [0.01, 0.03]
    assert [one["ts"] for one in ends] == [1000, 4000]
    assert {one["pid"] for one in starts} == {10}
    lanes = {(e["pid"], e["tid"]) for e in of_phase(document, "X") if e["cat"] == "kernel"}
    assert {(one["pid"], one["tid"]) for one in ends} <= lanes


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_our_reader_finds_what_was_there(trace: Path, tmp_path: Path, name: str) -> None:
    export(trace, tmp_path / name)
    found, expected = open_trace(tmp_path / name), open_trace(trace)
    columns = ["start_ns", "end_ns", "device", "stream", "correlation", "name", "activity"]
    pd.testing.assert_frame_equal(
        found.kernels.to_frame()[columns].astype(str),
        expected.kernels.to_frame()[columns].astype(str),
    )
    columns = ["start_ns", "end_ns", "direction", "n_bytes", "src_kind", "dst_kind"]
    pd.testing.assert_frame_equal(
        found.copies.to_frame()[columns].astype(str),
        expected.copies.to_frame()[columns].astype(str),
    )
    assert (
        found.api_calls.to_frame()["name"].tolist()
        == expected.api_calls.to_frame()["name"].tolist()
    )
    assert found.ranges.to_frame()["name"].tolist() == ["step 1"]
    assert found.processes.to_frame()["rank"].tolist() == [0]


def test_ranks_stand_side_by_side_on_one_clock(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(2):
        write_nsys(builder(rank).build(), folder / f"rank{rank}.sqlite")
    document = export(folder, tmp_path / "run.json")
    names = names_of(document, "process_name").values()
    assert {"rank 0 · GPU 0", "rank 1 · GPU 1"} <= set(names)
    kernels = [e for e in of_phase(document, "X") if e["name"] == "gelu"]
    assert len({event["pid"] for event in kernels}) == 2
    assert {event["ts"] for event in kernels} == {3000}


def test_what_overlaps_in_part_has_a_lane_of_its_own(tmp_path: Path) -> None:
    made = TraceBuilder().kernel("a", 0, 100).kernel("b", 50, 150).kernel("c", 60, 70)
    write_nsys(made.kernel("d", 200, 210).build(), tmp_path / "t.sqlite")
    document = export(tmp_path / "t.sqlite", tmp_path / "t.json")
    lanes = names_of(document, "thread_name")
    found = {e["name"]: lanes[e["pid"], e["tid"]] for e in of_phase(document, "X")}
    assert found == {
        "a": "stream 7",
        "b": "stream 7 · overlapping 1",
        "c": "stream 7",
        "d": "stream 7",
    }


def test_what_overlaps_in_many_lanes_still_nests_in_each(tmp_path: Path) -> None:
    made = TraceBuilder()
    for number in range(200):
        made.kernel("early", number, 400 + number).kernel("late", 1000 + number, 1300 + number)
    write_nsys(made.build(), tmp_path / "t.sqlite")
    document = export(tmp_path / "t.sqlite", tmp_path / "t.json")
    kernels = of_phase(document, "X")
    assert len(kernels) == 400
    # 200 run at once; a lane is used again once it is free.
    assert len({(event["pid"], event["tid"]) for event in kernels}) == 200


def test_counters_are_series_and_gaps_are_left_out(tmp_path: Path) -> None:
    samples = make_table(
        "samples",
        {
            "start_ns": [1, 2, 3],
            "source": ["gpu:0"] * 3,
            "metric": ["w"] * 3,
            "value": [1.5, np.nan, 2],
        },
    )
    trace = builder().build()
    run = run_of(Ranks.of(trace.with_tables({"samples": samples})))
    output = tmp_path / "t.json"
    exporter_called("perfetto").load()(run, Request(output))
    counters = of_phase(json.loads(output.read_text("utf-8")), "C")
    assert [(c["name"], c["ts"], c["args"]["value"]) for c in counters] == [
        ("gpu:0 · w", 0.001, 1.5),
        ("gpu:0 · w", 0.003, 2.0),
    ]


def test_every_kind_of_event_says_all_that_is_known(tmp_path: Path) -> None:
    """Times count from the first event of the run, which lies at 3 ms here."""
    made = TraceBuilder().process(10, name="python", rank=0)
    made.range("whole", 3 * MS, 9 * MS, payload=2.5, category=4, process=10)
    made.memset(4 * MS, 5 * MS, n_bytes=8, process=10)
    made.overhead("buffer flush", 3 * MS, 4 * MS, process=10)
    made.collective("allreduce", 5 * MS, 6 * MS, n_bytes=64, group="dp", group_rank=1, process=10)
    path = tmp_path / "t.json"
    exporter_called("perfetto").load()(run_of(Ranks.of(made.build())), Request(path))
    document = json.loads(path.read_text())
    events = {event["name"]: event for event in of_phase(document, "X")}
    found = {name: (event["cat"], event["ts"], event["dur"]) for name, event in events.items()}
    assert found == {
        "whole": ("user_annotation", 0, 6000),
        "Memset (Device)": ("gpu_memset", 1000, 1000),
        "buffer flush": ("overhead", 0, 1000),
        "allreduce": ("collective", 2000, 1000),
    }
    assert events["whole"]["args"] == {"category": 4, "payload": 2.5}
    assert events["Memset (Device)"]["args"]["bytes"] == 8
    told = {"bytes": 64, "Group size": 2, "group_rank": 1, "dtype": "float32"}
    where = {"thread": 1, "Process Group Name": "dp", "backend": "nccl"}
    assert events["allreduce"]["args"] == {**told, **where}
    threads = names_of(document, "thread_name")
    lane = threads[events["buffer flush"]["pid"], events["buffer flush"]["tid"]]
    assert lane.endswith("profiler overhead")


def test_parts_give_the_same_events(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = export(trace, tmp_path / "whole.json")
    monkeypatch.setattr(Material, "__init__", _in_small_parts(Material.__init__))
    parts = export(trace, tmp_path / "parts.json")
    for phase in "XiC":
        assert sorted(map(str, of_phase(parts, phase))) == sorted(map(str, of_phase(whole, phase)))
    assert len(of_phase(parts, "s")) == len(of_phase(whole, "s")) == 2


def _in_small_parts(begin: Callable[..., None]) -> Callable[..., None]:
    def init(self: Material, *arguments: Any, **more: Any) -> None:
        begin(self, *arguments, **more, rows_of_part=2)

    return init


def test_microseconds_are_exact() -> None:
    ns = np.array([0, 1, 999, 1000, -1, 2**53 + 1], np.int64)
    assert microseconds(ns) == [
        *("0.000", "0.001", "0.999", "1.000", "-0.001", "9007199254740.993"),
    ]


def test_findings_steps_and_waits_have_lanes_that_lead_back(tmp_path: Path) -> None:
    """Four steps of 10 ms: the GPU works for 2 ms, then waits until the next step."""
    made = TraceBuilder().process(1, rank=0).device(0, "H100")
    for number in range(6):
        t = number * 10 * MS
        made.step(t, t + 10 * MS, number).kernel("k", t, t + 2 * MS, launched_ns=(t, t + 10))
    write_nsys(made.build(), tmp_path / "t.sqlite")
    plain = export(tmp_path / "t.sqlite", tmp_path / "plain.json")
    document = export(tmp_path / "t.sqlite", tmp_path / "t.json", has_tracks=True)
    own = [event for event in of_phase(document, "X") if event["cat"] == "traceprof"]
    others = [event for event in of_phase(document, "X") if event["cat"] != "traceprof"]
    assert others == of_phase(plain, "X")
    threads = names_of(document, "thread_name")
    lanes: dict[str, list[Any]] = {}
    for event in own:
        lanes.setdefault(threads[event["pid"], event["tid"]], []).append(event)
    steps = {event["name"]: (event["ts"], event["dur"]) for event in lanes["Steps of process 1"]}
    # A step lasts on the GPU from the end of the work before it to the end of its own.
    assert steps["step 2"] == (12_000, 10_000)
    waits = {(event["ts"], event["dur"]) for event in lanes["Longest waits of GPU 0"]}
    assert (22_000, 8_000) in waits
    finding = lanes["Finding 1"][0]
    assert "idle" in finding["name"]
    assert finding["args"]["saving"].startswith("saves ")
    assert "--window" in finding["args"]["open"]
    start, end = round(finding["ts"] * 1000), round((finding["ts"] + finding["dur"]) * 1000)
    assert finding["args"]["open"].endswith(f"{start}ns..{end}ns")
    assert f"mark={start}..{end}" in finding["args"]["address"]
    found, without = (open_trace(tmp_path / name) for name in ("t.json", "plain.json"))
    assert len(found.ranges) == len(without.ranges) == 6
    assert found.info.warnings == without.info.warnings


def test_a_trace_without_gpu_work_is_exported_with_tracks(tmp_path: Path) -> None:
    write_nsys(TraceBuilder().range("load", 0, MS).build(), tmp_path / "t.sqlite")
    document = export(tmp_path / "t.sqlite", tmp_path / "t.json", has_tracks=True)
    assert "load" in {event["name"] for event in of_phase(document, "X")}


@pytest.mark.traces
@pytest.mark.parametrize(
    "name",
    [
        "nsys/2026.2-2gpu-nccl-before.sqlite",
        "nsys/2024.6-cuda-graphs-a100.sqlite",
        "nsys/2022.2-saxpy-mpi-a100.sqlite",
        "nvprof/v16-nccl-4gpu.nvvp",
        "kineto/2025-mi300x-rccl.json.gz",
    ],
)
def test_real_traces_keep_counts_and_durations(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    path = real_trace(name)
    export(path, tmp_path / "t.json")
    found, expected = open_trace(tmp_path / "t.json"), open_trace(path)
    for table in ("kernels", "copies", "api_calls", "ranges", "syncs"):
        frames = [trace.table(table).to_frame() for trace in (found, expected)]
        sums = [(len(f), int((f["end_ns"] - f["start_ns"]).sum())) for f in frames]
        assert sums[0] == sums[1], table


def test_collectives_and_operators_of_all_sources_are_read_back(tmp_path: Path) -> None:
    made = TraceBuilder().process(10, rank=0, world_size=2).kernel("k", MS, 2 * MS)
    row = {"group": "dp", "group_rank": 1, "sequence": 4, "tag": 9, "process": 10, "thread": 11}
    made.collective("all_reduce", 5 * MS, 6 * MS, n_bytes=64, **row)
    made.collective("send", 6 * MS, 7 * MS, n_bytes=8, **row, peer=1, peer_rank=3, backend="mpi")
    made.collective("recv", 7 * MS, 8 * MS, **row, peer=0, peer_rank=2, correlation=5)
    for source in (*HOST_SOURCES, *schema.HOST_SOURCES.values(), *schema.MPI_SOURCES.values()):
        made.host_op(f"of {source}", 8 * MS, 9 * MS, source=source, process=10)
    made.host_op("of region", 8 * MS, 9 * MS, source="region", process=10)
    path, expected = tmp_path / "t.json", made.build().collectives
    exporter_called("chrome").load()(run_of(Ranks.of(made.build())), Request(path))
    found = open_trace(path)
    assert found.info.warnings == ()
    again = {name: found.collectives[name].tolist() for name in expected if "_ns" not in name}
    assert again == {name: expected[name].tolist() for name in again}
    sources = {tuple(op.split()[1:]): source for op, source in _sources(found)}
    assert sources == {(name,): name for name in HOST_SOURCES if name != "host_op"} | {
        ("host_op",): "host_op",
        ("region",): "host_op",
    }


def _sources(trace: Trace) -> list[tuple[str, str]]:
    ops = trace.host_ops
    return list(zip(ops["name"].tolist(), ops["source"].tolist(), strict=True))


def test_a_synchronization_with_another_gpu_does_not_renumber_gpus(tmp_path: Path) -> None:
    """Nsight Systems recorded the synchronizations of process 11 on GPU 0, its kernels on GPU 1."""
    made = TraceBuilder()
    for process, device in ((10, 0), (11, 1)):
        where = {"process": process, "device": device}
        launched = (MS + device, 2 * MS)
        made.kernel("ncclKernel", 3 * MS, 4 * MS, launched_ns=launched, **where)
        made.sync("context", 5 * MS, 6 * MS, process=process, device=0)
    path = tmp_path / "t.json"
    exporter_called("chrome").load()(run_of(Ranks.of(made.build())), Request(path))
    found = open_trace(path)
    assert found.info.warnings == ()
    assert found.kernels["device"].tolist() == [0, 1]
