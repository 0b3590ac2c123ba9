"""Windows of a Kineto trace: events are passed on as they are written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.formats.kineto_file import as_json, complete, kernel, write
from traceprof.formats import ReadOptions, cut, open_trace
from traceprof.formats.shared.json_stream import JsonArrayStream
from traceprof.model.cutting import REMOVED, CutRequest, no_progress
from traceprof.model.timing import TimeWindow

SECRET = "hunter2-and-more"
WINDOW = TimeWindow(100, 200)


def events() -> list[dict[str, Any]]:
    call = "cuda_runtime"
    return [
        {"ph": "M", "name": "process_name", "pid": 4242, "args": {"name": f"x --token={SECRET}"}},
        complete("cpu_op", "first", 0, 1),
        complete("cpu_op", "around the launch", 4, 9),
        complete("cpu_op", "another thread", 4, 9, tid=1),
        complete(call, "cudaLaunchKernel", 5, 8, args={"correlation": 2}),
        complete(call, "cudaLaunchKernel", 2, 3, args={"correlation": 1}),
        kernel("early", 10, 20, correlation=1),
        kernel("crosses", 90, 110, correlation=2),
        kernel("inside", 120, 130, correlation=3, device=1),
        kernel("late", 300, 310, correlation=4),
        complete("of 2030", "new", 150, 160, unheard={"of": [1.50, "x"]}),
        *_arrow("ac2g", 2, 0.005, 0.090),
        *_arrow("ac2g", 4, 0.160, 0.300),
        *_arrow("fwdbwd", 2, 0.150, 0.180),
        *_arrow("fwdbwd", 3, 0.050, 0.180),
        {"ph": "i", "name": "then", "s": "g", "pid": 1, "tid": 1, "ts": 0.05},
        {"ph": "i", "name": "now", "s": "g", "pid": 1, "tid": 1, "ts": 0.1},
    ]


def _arrow(category: str, number: int, start: float, end: float) -> list[dict[str, Any]]:
    of = {"cat": category, "id": number, "pid": 1, "tid": 1, "name": category}
    return [{"ph": "s", "ts": start, **of}, {"ph": "f", "bp": "e", "ts": end, **of}]


def cut_to(path: Path, **more: Any) -> Path:
    target = path.with_name("part.json")
    cut(path, target, CutRequest(**{"window": WINDOW, **more}), no_progress)
    return target


def named(path: Path) -> list[str]:
    found = json.loads(path.read_text("utf-8"))["traceEvents"]
    return [event["name"] for event in found if event["ph"] in "XiM"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "whole.json", events(), env={"API": SECRET}, baseTimeNanoseconds=7)


KEPT = ["process_name", "around the launch", "cudaLaunchKernel", "crosses", "inside", "new", "now"]


def test_it_keeps_what_is_in_the_window_or_belongs_to_it(path: Path) -> None:
    part = cut_to(path)
    assert named(part) == KEPT
    found = json.loads(part.read_text("utf-8"))["traceEvents"]
    arrows = [(event["cat"], event["id"], event["ph"]) for event in found if event["ph"] in "sf"]
    assert arrows == [("ac2g", 2, "s"), ("ac2g", 2, "f"), ("fwdbwd", 2, "s"), ("fwdbwd", 2, "f")]


def test_events_and_header_are_passed_on_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    inside = '{"ph":"X", "cat":"kernel","name":"a","pid":0,"tid":7,"ts":0.1500,"dur":1e-2,"x":1.10}'
    first = '{"ph":"X","cat":"cpu_op","name":"first","pid":1,"tid":1,"ts":0,"dur":0}'
    path.write_text(
        f'{{"big": 12345678901234567890.0, "traceEvents": [{first},{inside}], "z":1E2}}'
    )
    text = cut_to(path).read_text("utf-8")
    assert inside in text
    assert '"big": 12345678901234567890.0' in text
    assert '"z": 1E2' in text


def test_what_is_no_strict_json_is_passed_on_too(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    first = '{"ph":"X","cat":"cpu_op","name":"first","pid":1,"tid":1,"ts":0,"dur":0}'
    inside = '{"ph":"X","cat":"cpu_op","name":"nan","pid":1,"tid":1,"ts":0.150,"dur":0.01,"v":NaN}'
    path.write_text(f'{{"traceEvents": [{first}, {inside}]}}')
    assert inside in cut_to(path).read_text("utf-8")


@pytest.mark.parametrize("is_packed", [False, True])
def test_packed_files_are_read_and_written(tmp_path: Path, is_packed: bool) -> None:
    path = write(tmp_path / "whole.json.gz", events())
    part = cut_to(path, is_packed=is_packed)
    assert part.read_bytes().startswith(b"\x1f\x8b") == is_packed
    assert len(open_trace(part).kernels.to_frame()) == 2
    if is_packed:
        assert json.loads(gzip.decompress(part.read_bytes()))["schemaVersion"] == 1


def test_secrets_are_in_no_byte(path: Path) -> None:
    part = cut_to(path)
    assert SECRET not in part.read_text("utf-8")
    found = json.loads(part.read_text("utf-8"))
    assert found["env"] == REMOVED
    assert found["baseTimeNanoseconds"] == 7
    assert cut_to(path, keep_environment=True).read_text("utf-8").count(SECRET) == 2


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_secrets_that_the_header_tells_are_in_no_name(
    tmp_path: Path, is_first: bool, is_ascii: bool
) -> None:
    secret = 'pàss"w\\rd'
    more = {"args": {secret: [1.5, f"as {secret}"]}}
    found = [*events(), complete("cpu_op", f"login {secret}", 150, 160, **more)]
    header, array = (
        as_json(one, ensure_ascii=is_ascii) for one in ({"DB_PASSWORD": secret}, found)
    )
    parts = [f'"metadata": {header}', f'"traceEvents": {array}'][:: 1 if is_first else -1]
    path = tmp_path / "whole.json"
    path.write_text("{" + ",".join(parts) + "}", "utf-8")

    def login(path: Path) -> Any:
        found = json.loads(path.read_text("utf-8"))["traceEvents"]
        return next(event for event in found if event["name"].startswith("login"))

    shown = login(cut_to(path))
    assert (shown["name"], shown["args"]) == ("login ***", {"***": [1.5, "as ***"]})
    assert login(cut_to(path, keep_environment=True)) == login(path)
    assert "login ***" in [*open_trace(path).host_ops.to_frame()["name"]]
    kept = open_trace(path, ReadOptions(keeps_secrets=True))
    assert f"login {secret}" in [*kept.host_ops.to_frame()["name"]]


def test_clipping_changes_the_times_alone(path: Path) -> None:
    part = cut_to(path, clip=True)
    kernels = open_trace(part).kernels.to_frame()
    assert [*kernels["end_ns"] - kernels["start_ns"]] == [10, 10]
    found = json.loads(part.read_text("utf-8"))["traceEvents"]
    (crosses,) = [event for event in found if event["name"] == "crosses"]
    assert (crosses["ts"], crosses["dur"]) == (0.1, 0.01)
    assert crosses["args"]["correlation"] == 2


def test_devices_and_tables_can_be_chosen(path: Path) -> None:
    assert "crosses" not in named(cut_to(path, devices=frozenset({1})))
    assert named(cut_to(path, tables=frozenset({"kernels"}))) == [
        "process_name",
        "crosses",
        "inside",
    ]


def test_a_part_says_where_it_is_from_and_covers_its_window(path: Path) -> None:
    part = cut_to(path, source="whole.json", label="100ns..200ns")
    (note,) = json.loads(part.read_text("utf-8"))["traceprofCut"]
    assert (note["source"], note["window_start_ns"], note["window_end_ns"]) == (
        "whole.json",
        100,
        200,
    )
    again = part.with_name("again.json")
    cut(part, again, CutRequest(TimeWindow(110, 140)), no_progress)
    assert len(json.loads(again.read_text("utf-8"))["traceprofCut"]) == 2
    nothing = cut_to(path, window=TimeWindow(500, 700))
    assert open_trace(nothing).span == TimeWindow(0, 200)


def test_a_list_of_events_alone_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(as_json(events()))
    assert named(cut_to(path)) == KEPT


def test_the_stream_tells_how_values_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a" : 1.50, "traceEvents":[{"v": 2.0 }], "b":[ 1]}')
    with path.open("rb") as file:
        stream = JsonArrayStream(file, "traceEvents")
        texts = [stream.text for _ in stream]
    assert texts == [b'{"v": 2.0 }']
    assert stream.header_texts == [(b'"a"', b"1.50"), (b'"b"', b"[ 1]")]


def test_bytes_that_are_no_text_hide_no_secret(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", events(), **{"a key": f"bad --token={SECRET}"})
    path.write_bytes(path.read_bytes().replace(b"bad", b"b\xffd").replace(b"a key", b"\xff key"))
    assert SECRET.encode() in path.read_bytes()
    cut = cut_to(path)
    assert SECRET.encode() not in cut.read_bytes()
    assert len(open_trace(cut).kernels.to_frame()) == 2
