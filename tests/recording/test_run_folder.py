import json
import re
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden.numbers import digest_of
from tests.recording.conftest import (
    DDP,
    ENVIRONMENT,
    NAMED_STEPS,
    TOOLS,
    on_small_disk,
    record,
    require_tool,
)
from tests.requirements import require
from tests.running import run as run_analysis
from traceprof.errors import NotRecordedError
from traceprof.formats import open_trace
from traceprof.formats.runs.files import open_run
from traceprof.measures import ANALYSES
from traceprof.measures.steps.find import decide_steps
from traceprof.model.placement import place_run
from traceprof.recording import RecordRequest
from traceprof.recording import outputs as output_files
from traceprof.recording import record as run_and_record
from traceprof.recording.outputs import write_export
from traceprof.session.opening import open_ranks
from traceprof.session.options import Opening

MANIFEST = f"manifest-{socket.gethostname()}.json"


@pytest.mark.torch
def test_a_folder_gets_a_file_per_rank_and_a_manifest(tmp_path):
    require("torch")
    folder = tmp_path / "run"
    folder.mkdir()
    recorded = record(folder, DDP, "-o", f"{folder}/", "--with", "torch", TRACEPROF_RUN="r7")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert sorted(path.name for path in folder.iterdir()) == [
        MANIFEST,
        "rank0.sqlite",
        "rank1.sqlite",
    ]
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["label"] == "r7"
    assert manifest["world_size"] == 2
    assert manifest["recorder"] == "torch"
    host = socket.gethostname()
    told = [{name: row[name] for name in ("file", "host", "rank")} for row in manifest["ranks"]]
    assert told == [
        {"file": "rank0.sqlite", "host": host, "rank": 0},
        {"file": "rank1.sqlite", "host": host, "rank": 1},
    ]
    run = open_run([folder])
    assert [(member.rank, member.host) for member in run] == [(0, host), (1, host)]
    assert run.world_size == 2
    traces = [open_trace(folder / f"rank{rank}.sqlite") for rank in (0, 1)]
    for rank, trace in enumerate(traces):
        assert trace.processes.to_frame().loc[
            trace.processes.to_frame()["rank"] >= 0, "rank"
        ].tolist() == [rank]
        assert trace.ranges.to_frame()["process"].nunique() == 1
        assert (trace.ranges.to_frame()["name"] == "optimizer").sum() == 12
        assert len(trace.host_ops.to_frame())
    assert traces[0].info.utc_epoch_ns == traces[1].info.utc_epoch_ns


def test_a_folder_of_a_single_process(tmp_path):
    recorded = record(
        tmp_path, [*NAMED_STEPS, "0"], "-o", f"{tmp_path}/new/deep/", "--with", "torch"
    )
    assert recorded.done.returncode == 0, recorded.done.stderr
    names = sorted(path.name for path in (tmp_path / "new" / "deep").iterdir())
    assert names == [MANIFEST, "rank0.sqlite"]
    again = record(tmp_path, ["true"], "-o", f"{tmp_path}/new/deep/", "--with", "torch")
    assert again.done.returncode == 2
    assert MANIFEST in again.done.stderr


BOTH = 'RANK=0 WORLD_SIZE=2 "$@" & RANK=1 WORLD_SIZE=2 "$@"; code=$?; wait; exit $code'


@pytest.mark.parametrize("tool", TOOLS)
def test_helpers_are_in_the_file_of_the_rank_that_started_them(tmp_path, tool):
    require_tool(tool)
    command = ["sh", "-c", BOTH, "sh", *NAMED_STEPS, "fork"]
    recorded = record(tmp_path, command, "-o", f"{tmp_path}/run/", "--with", tool)
    assert recorded.done.returncode == 0, recorded.done.stderr
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == [MANIFEST, "rank0.sqlite", "rank1.sqlite"]
    for rank in (0, 1):
        trace = open_trace(tmp_path / "run" / f"rank{rank}.sqlite")
        assert sorted(trace.processes.to_frame()["rank"]) == [-1, rank]
        work = trace.ranges.to_frame()[trace.ranges.to_frame()["name"] == "work"]
        assert sorted(work["process"].value_counts()) == [1, 3]
    run = open_run([tmp_path / "run"])
    assert run.ranks == (0, 1)
    assert sorted(place_run(run).table("processes").to_frame()["rank"]) == [-1, -1, 0, 1]


@pytest.mark.nsys
@pytest.mark.torch
def test_files_of_ranks_say_what_one_file_of_all_says(tmp_path, monkeypatch):
    """One recording under nsys, written both ways, through every analysis that has its data."""
    require("nsys")
    require("torch")

    def write_both(job, database, notes):
        copy = Path(shutil.copy(database, tmp_path / "export.sqlite"))
        request = replace(job.request, output=tmp_path / "whole.sqlite", is_folder=False)
        write_export(replace(job, request=request), copy, [])
        return write_export(job, database, notes)

    monkeypatch.setattr(output_files, "write_export", write_both)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    request = RecordRequest(
        [*DDP, "--workers", "1"], tmp_path / "run", is_folder=True, recorder="nsys"
    )
    recording = run_and_record(request)
    assert (recording.exit_code, recording.ranks) == (0, (0, 1))
    files = [tmp_path / "run" / f"rank{rank}.sqlite" for rank in (0, 1)]
    assert sorted((tmp_path / "run").glob("*.sqlite")) == files
    apart, notes = open_ranks([tmp_path / "run"], Opening())
    whole = decide_steps(place_run(open_run([tmp_path / "whole.sqlite"])))
    assert notes == ()
    assert whole.span == apart.span
    apart, whole = apart.within(apart.span), whole.within(apart.span)
    n_compared = 0
    for entry in ANALYSES:
        try:
            expected = run_analysis(entry.name, whole)
        except NotRecordedError:
            continue
        assert digest_of(run_analysis(entry.name, apart)) == digest_of(expected), entry.name
        n_compared += 1
    assert n_compared > 10
    for file in files:
        table = subprocess.run(
            ["nsys", "stats", "--report", "nvtxsum", "--format", "csv", str(file)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert re.search(r"^[\d.]+,\d+,12,.*,PushPop,traceprof:optimizer$", table, re.MULTILINE)


@pytest.mark.nsys
def test_where_the_files_of_ranks_do_not_fit_one_file_keeps_everything(tmp_path):
    require("nsys")
    command = ["sh", "-c", BOTH, "sh", *NAMED_STEPS, "0"]
    on_disk = on_small_disk(tmp_path / "disk", "800k")
    recorded = record(
        tmp_path, command, "-o", f"{tmp_path}/disk/run/", "--with", "nsys", prefix=on_disk
    )
    assert recorded.done.returncode == 0, recorded.done.stderr
    node = f"node-{socket.gethostname()}.sqlite"
    assert f"traceprof wrote all ranks to {node} instead" in recorded.done.stderr
    left = tmp_path / "disk.copy" / "run"
    assert sorted(path.name for path in left.iterdir()) == [MANIFEST, node]
    run = open_run([left])
    assert run.ranks == (0, 1)
    assert [(member.trace.ranges.to_frame()["name"] == "work").sum() for member in run] == [3, 3]


@pytest.mark.nsys
def test_a_single_process_under_nsys_is_one_file(tmp_path):
    require("nsys")
    recorded = record(tmp_path, [*NAMED_STEPS, "0"], "-o", f"{tmp_path}/run/", "--with", "nsys")
    assert recorded.done.returncode == 0, recorded.done.stderr
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == [MANIFEST, "rank0.sqlite"]
    assert (
        open_trace(tmp_path / "run" / "rank0.sqlite").ranges.to_frame()["name"] == "work"
    ).sum() == 3


def test_the_file_of_another_node_is_not_overwritten(tmp_path):
    """Two nodes that share a folder, and nobody tells their programs which rank they are."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rank0.sqlite").write_text("another node's")
    recorded = record(tmp_path, [*NAMED_STEPS, "0"], "-o", f"{folder}/", "--with", "torch")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert (folder / "rank0.sqlite").read_text() == "another node's"
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["ranks"][0]["file"] == f"rank0-{socket.gethostname()}.sqlite"
