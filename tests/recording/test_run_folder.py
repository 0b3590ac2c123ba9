import json
import socket
import sys

import pytest

from tests.recording.conftest import DDP, PROGRAMS, record
from tests.requirements import require
from traceprof.formats import open_trace
from traceprof.formats.runs.files import open_run

NAMED_STEPS = [sys.executable, str(PROGRAMS / "named_steps.py")]
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
    assert manifest["ranks"] == [
        {"file": "rank0.sqlite", "host": host, "rank": 0},
        {"file": "rank1.sqlite", "host": host, "rank": 1},
    ]
    run = open_run([folder])
    assert [(member.rank, member.host) for member in run] == [(0, host), (1, host)]
    assert run.world_size == 2
    traces = [open_trace(folder / f"rank{rank}.sqlite") for rank in (0, 1)]
    for rank, trace in enumerate(traces):
        assert trace.processes.loc[trace.processes["rank"] >= 0, "rank"].tolist() == [rank]
        assert trace.ranges["process"].nunique() == 1
        assert (trace.ranges["name"] == "optimizer").sum() == 12
        assert len(trace.host_ops)
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


@pytest.mark.nsys
def test_nsys_leaves_a_file_per_node(tmp_path):
    require("nsys")
    recorded = record(tmp_path, [*NAMED_STEPS, "0"], "-o", f"{tmp_path}/run/", "--with", "nsys")
    assert recorded.done.returncode == 0, recorded.done.stderr
    (file,) = (tmp_path / "run").glob("*.sqlite")
    assert file.name == f"node-{socket.gethostname()}.sqlite"
    assert (open_trace(file).ranges["name"] == "work").sum() == 3
