"""The list of operations, row by row, against the lists of nsys and nvprof."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pydemumble
import pytest

from tests import real_traces
from tests.requirements import require
from traceprof.errors import UsageError
from traceprof.formats import open_trace
from traceprof.model.table import Table
from traceprof.session.operations import operations
from traceprof.session.run import open_run

Row = tuple[object, ...]
_SIZES = tuple(f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz")
_LAUNCH = (*_SIZES, "registers", "static_shared_bytes", "dynamic_shared_bytes")
_OF_NSYS = ("GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ", "Reg/Trd", "StcSMem (B)", "DymSMem (B)")
_OF_NVPROF = ("Grid X", "Grid Y", "Grid Z", "Block X", "Block Y", "Block Z", "Registers Per Thread")


def listed(path: Path) -> pd.DataFrame:
    return Table.stacked([*operations(open_run([path]).within("all")).chunks()]).to_frame()


def numbers(values: object) -> tuple[int | None, ...]:
    return tuple(None if value != value or value < 0 else int(value) for value in values)


def ours(path: Path, *columns: str) -> list[Row]:
    table = listed(path)
    table = table[~table["name"].str.startswith("CUDA graph ")]
    if "n_bytes" not in table:
        table = table.assign(n_bytes=-1)
    for column in set(columns) - set(table):
        table = table.assign(**{column: -1})
    return [
        (*numbers(row[:-1]), row[-1])
        for row in table[[*columns, "name"]].itertuples(index=False, name=None)
    ]


@pytest.mark.nsys
@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.NSYS)
def test_every_operation_is_a_row_of_nsys(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nsys = require("nsys")
    path = real_trace(name)
    copy = Path(shutil.copy(path, tmp_path / "copy.sqlite"))
    printed = subprocess.run(
        [nsys, "stats", "-q", "-f", "csv:mem=B", "-r", "gputrace", "-o", "-", copy],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    rows = list(csv.DictReader(io.StringIO(printed.lstrip())))
    trace = open_trace(path)
    if not rows:  # without a table of GPUs nsys lists nothing
        assert trace.devices.to_frame()["name"].eq("").all() or trace.kernels.to_frame().empty
        return
    zero = trace.span.start_ns
    launched = {(row["Device"], row["Strm"], row["Ctx"]) for row in rows if row["GrdX"].isdigit()}
    theirs = [
        (
            int(row["Start (ns)"]) - zero,
            int(row["Duration (ns)"]),
            int(row["CorrId"]),
            *(None if row[column] in ("", "None") else int(row[column]) for column in _OF_NSYS),
            None if row["Bytes (B)"] in ("", "None") else int(row["Bytes (B)"]),
            int(row["Strm"]),
            # that of a copy is known where a kernel ran on its stream
            int(row["Ctx"]) if (row["Device"], row["Strm"], row["Ctx"]) in launched else None,
            row["Name"],
        )
        for row in rows
    ]
    columns = ("at_ns", "duration_ns", "correlation", *_LAUNCH, "n_bytes", "stream", "context")
    found = ours(path, *columns)
    assert sorted(found, key=str) == sorted(theirs, key=str)


@pytest.mark.nvprof
@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.NVPROF)
def test_every_operation_is_a_row_of_nvprof(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nvprof = require("nvprof")
    path = real_trace(name)
    copy = Path(shutil.copy(path, tmp_path / "copy.nvprof"))
    command = [nvprof, "-i", copy, "--print-gpu-trace", "--csv", "-u", "ns", "--demangling", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    lines = (done.stdout + done.stderr).partition("======== Profiling result:\n")[2].splitlines()
    if not (lines and lines[0].startswith('"Start"')):
        with pytest.raises(UsageError, match="no events"):
            listed(path)
        return
    theirs = []
    for row in csv.DictReader(io.StringIO("\n".join([lines[0], *lines[2:]]))):
        duration = round(float(row["Duration"]))
        launch = (int(row[column]) if row[column] else None for column in _OF_NVPROF)
        stream = int(row["Stream"]) if row["Stream"] else None
        plain = pydemumble.demangle(row["Name"]) or row["Name"]
        theirs.append((duration, *launch, stream, plain))
    found = ours(path, "duration_ns", *_SIZES, "registers", "stream")
    assert sorted(found, key=str) == sorted(theirs, key=str)
