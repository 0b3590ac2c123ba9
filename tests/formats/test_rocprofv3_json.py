"""The JSON of rocprofv3: the same tables as the database of the same run, and damaged files."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.formats.rocpd_database import RocpdDatabase
from tests.formats.rocprofv3_json import document_of, write_json
from tests.formats.test_rocpd import HIP, example
from tests.reading import records
from tests.running import run
from traceprof.cli import app
from traceprof.errors import TraceError
from traceprof.formats import open_trace
from traceprof.formats.contract import ReadOptions
from traceprof.formats.shared.json_stream import JsonArrayStream
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.trace import Trace

EVERYTHING = ReadOptions(tables=frozenset(TABLES))
NOT_IN_JSON = {"collectives": ["n_bytes", "dtype", "group"]}
"""The arguments of RCCL calls are only in the database."""


def assert_same(database: Path, path: Path) -> Trace:
    """Check that a database and the JSON give the same tables; return those of the JSON."""
    expected, found = open_trace(database, EVERYTHING), open_trace(path, EVERYTHING)
    assert (expected.info.format, found.info.format) == ("rocpd", "rocprofv3-json")
    assert found.info.warnings == ()
    assert found.info.host == expected.info.host
    assert found.recorded == expected.recorded - {"threads"}
    assert found.span == expected.span
    for name in TABLES:
        if name != "threads":  # only the database names threads
            frames = [
                trace.table(name).to_frame().drop(columns=NOT_IN_JSON.get(name, []))
                for trace in (expected, found)
            ]
            pd.testing.assert_frame_equal(*frames)
    return found


def test_the_tables_are_those_of_the_database(tmp_path: Path) -> None:
    database = example(tmp_path / "a.db")
    trace = assert_same(database, write_json(database, tmp_path / "a.json"))
    assert list(trace.kernels["activity"]) == ["gemm", "communication"]
    assert list(trace.ranges["name"]) == ["step 1", "epoch"]
    assert list(trace.marks["name"]) == ["checkpoint"]
    (collective,) = records(trace.collectives.to_frame())
    assert (collective.op, collective.correlation, collective.n_bytes) == ("all_reduce", 4, ABSENT)


@pytest.mark.parametrize("indent", [None, 1])
def test_many_records_are_read_in_runs(indent: int | None, tmp_path: Path) -> None:
    database, rng = tmp_path / "a.db", random.Random(3)
    with RocpdDatabase(database) as file:
        for number in range(3000):
            at = number * 1000
            span = (at, at + rng.randrange(1, 900))
            match number % 4:
                case 0:
                    file.kernel(f"k{rng.randrange(9)}", span, number, rng.choice((4, 6)))
                case 1:
                    file.copy("DEVICE_TO_HOST", span, number, rng.randrange(10**6), (6, 0))
                case 2:
                    file.region(HIP, "hipLaunchKernel", span, rng.randrange(1, 4), number)
                case _:
                    name = "roctxThreadRangeA"
                    file.region("MARKER_CORE_RANGE_API", name, span, 7, number, f"r{number % 5}")
    path = write_json(database, tmp_path / "a.json", indent=indent)
    assert path.stat().st_size > 1 << 19
    trace = assert_same(database, path)
    assert len(trace.kernels) == 750
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert_same(database, packed)
    tables = [run("kernels", open_trace(one)).table.to_frame() for one in (database, packed)]
    pd.testing.assert_frame_equal(*tables)


def test_several_processes_in_one_file(tmp_path: Path) -> None:
    database = tmp_path / "both.db"
    for number, guid in enumerate(("aaaa_1", "bbbb_2")):
        with RocpdDatabase(database, 100 + number, guid) as file:
            file.region(HIP, "hipLaunchKernel", (10, 20), 7, 1)
            file.kernel(f"mine {number}", (30, 40 + number), 1, (4, 6)[number])
    trace = assert_same(database, write_json(database, tmp_path / "both.json"))
    assert trace.processes.to_frame()["process"].tolist() == [100, 101]


def written(tmp_path: Path, change: Any) -> Path:
    """Write the JSON of the example after ``change`` of its only process."""
    document = document_of(example(tmp_path / "a.db"))
    change(document["rocprofiler-sdk-tool"][0])
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    return path


def test_early_versions_have_no_streams_registers_or_numbers_of_gpus(tmp_path: Path) -> None:
    def change(process: dict[str, Any]) -> None:
        for record in process["buffer_records"]["kernel_dispatch"]:
            del record["stream_id"]
        for agent in process["agents"]:
            del agent["logical_node_type_id"]
        for symbol in process["kernel_symbols"][1:]:
            del symbol["arch_vgpr_count"], symbol["accum_vgpr_count"]

    trace = open_trace(written(tmp_path, change), EVERYTHING)
    kernels = records(trace.kernels.to_frame())
    assert [(row.device, row.stream) for row in kernels] == [(0, 3), (1, 3)]
    assert set(trace.kernel_shapes["registers"].tolist()) == {ABSENT}


def test_dispatches_with_counters_only_are_kernels(tmp_path: Path) -> None:
    def change(process: dict[str, Any]) -> None:
        dispatches = process["buffer_records"].pop("kernel_dispatch")
        process["callback_records"]["counter_collection"] = [
            {"thread_id": 7, "stream_id": record.pop("stream_id"), "dispatch_data": record}
            for record in dispatches
        ]

    trace = open_trace(written(tmp_path, change))
    assert [
        (row.start_ns, row.end_ns, row.stream) for row in records(trace.kernels.to_frame())
    ] == [
        (800, 2_000, 1),
        (2_100, 2_600, 2),
    ]


def test_secrets_of_the_command_line_are_masked_in_names(tmp_path: Path) -> None:
    secret = "0123456789abcdef0123456789abcdef01234567"

    def change(process: dict[str, Any]) -> None:
        process["metadata"]["command"] += ["--api-key", secret]
        process["kernel_symbols"][1]["formatted_kernel_name"] = f"k {secret}"

    path = written(tmp_path, change)
    trace = open_trace(path)
    assert secret not in str([trace.table(name).to_frame().to_numpy().tolist() for name in TABLES])
    kept = open_trace(path, ReadOptions(keeps_secrets=True))
    assert secret in kept.kernels["name"].texts[0]


def test_values_that_are_no_numbers_tell_nothing(tmp_path: Path) -> None:
    odd = [None, True, 1.5, "7", [], {}, 10**30, -1, [[1]], {"handle": {"x": 1}}]

    def change(process: dict[str, Any]) -> None:
        lists = [process["agents"], process["kernel_symbols"], process["strings"]["marker_api"]]
        lists += process["buffer_records"].values()
        rng = random.Random(5)
        for items in lists:
            for item in list(items):
                for key in item:
                    items.append({**item, key: rng.choice(odd)})
            items.extend(odd)
        process["strings"]["buffer_records"] += odd
        process["metadata"] |= {"pid": 10**30, "node": 7, "command": odd}

    trace = open_trace(written(tmp_path, change), EVERYTHING)
    assert "Cijk_Ailk_Bljk_SB_MT64x64" in set(trace.kernels["name"])
    assert set(trace.kernels["process"].tolist()) == {ABSENT}


def test_a_truncated_file_keeps_what_is_complete(tmp_path: Path) -> None:
    path = written(tmp_path, lambda _: None)
    text = path.read_bytes()
    path.write_bytes(text[: text.index(b'"memory_copy"') + 30])
    trace = open_trace(path)
    assert len(trace.kernels) == 2
    assert trace.info.warnings == (
        "the file is truncated or damaged; the rest of the trace is missing",
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"rocprofiler-sdk-tool": []}',
        '{"rocprofiler-sdk-tool": {}}',
        '{"rocprofiler-sdk-tool": 7}',
        '{"rocprofiler-sdk-tool": [[{}]]}',
        '{"rocprofiler-sdk-tool"',
    ],
)
def test_without_events_it_says_what_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TraceError, match="the rocprofv3 JSON contains no events"):
        open_trace(path)


def test_kernels_alone_are_not_called_missing(tmp_path: Path) -> None:
    def change(process: dict[str, Any]) -> None:
        records = process["buffer_records"]
        process["buffer_records"] = {"kernel_dispatch": records["kernel_dispatch"][:1]}

    path = written(tmp_path, change)
    said = CliRunner().invoke(app, [str(path), "--no-cache"]).output
    assert "GPU time in the window: compute 100.0%" in said
    assert "no copies recorded: record GPU activity" in " ".join(said.split())
    assert "No GPU activity" not in said


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"rocprofiler-sdk-tool": [{"metadata": ' + "[" * 200_000)
    with pytest.raises(TraceError, match="nested too deeply"):
        open_trace(path)


def test_parts_are_entered_where_they_are_opened() -> None:
    text = b'{"a": [{"b": [1, 2], "c": {"d": 3}}, 7, [{"b": 4}]], "e": [[{"b": 5}]]}'
    stream = JsonArrayStream(io.BytesIO(text), "")
    assert list(stream.parts({"", "/a"}, lambda _: None)) == [
        ("", None),
        ("/a", None),
        ("/a/b", [1]),
        ("/a/b", [2]),
        ("/a/c", {"d": 3}),
        ("/a", 7),
        ("/a", [{"b": 4}]),
        ("/e", [[{"b": 5}]]),
    ]
    assert stream.is_complete
