"""What is recovered, row by row, beside what the normal end of the same recording has written."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from tests.recording.conftest import NAMED_STEPS, PROGRAMS, environment_of_test
from tests.requirements import nsys_in_turn, require
from traceprof.formats import open_trace
from traceprof.recording.session import recover

TRAINING = f"""
import sys
sys.path.insert(0, {str(PROGRAMS)!r})
import torch, torch.distributed as dist, traceprof
from named_steps import wait_for_disk
dist.init_process_group("gloo", init_method=f"file://{{sys.argv[1]}}", rank=0, world_size=1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
for number in range(20):
    if number == 10:
        traceprof.mark("settled")
    if number == 15:
        traceprof.metric("loss", 0.5)
        traceprof.mark("end")
        wait_for_disk()
        print("waiting", flush=True)
        sys.stdin.readline()
    optimizer.zero_grad()
    model(torch.zeros(2, 4)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
dist.destroy_process_group()
"""
"""Waits in the middle of its training until it is told to go on."""

WITH_PIPE = 'mkfifo "$TRACEPROF_DIR/agent.1.jsonl"; exec "$@"'
"""Leaves a pipe among the events, at which whoever gathers them waits."""

EVENTS = ("NVTX_EVENTS", "TRACEPROF_COLLECTIVES")
BY_THE_SECOND = ("TRACEPROF_SAMPLES", "TRACEPROF_HOST_OPS")
"""What reaches the disk each second, and with the end of a window of the profiler."""


def record_and_copy(folder, tool, *program):
    """Record a program that waits; copy its work folder while it does, and when it has ended."""
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-m", "traceprof", "record", "-o", folder / "normal.sqlite"),
            *("--with", tool, "--", "sh", "-c", WITH_PIPE, "sh", *program),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment_of_test(TMPDIR=str(folder)),
    )
    assert recorder.stdout is not None
    assert recorder.stdin is not None
    assert recorder.stdout.readline() == "waiting\n"
    (work,) = (path.parent for path in folder.glob("traceprof-*/recording.json"))
    copy(work, folder / "in_the_middle")
    recorder.stdin.write("go on\n")
    recorder.stdin.flush()
    writer = os.open(work / "agent.1.jsonl", os.O_WRONLY)  # until somebody gathers
    copy(work, folder / "at_the_end")
    os.close(writer)
    _, said = recorder.communicate(timeout=120)
    assert (folder / "normal.sqlite").exists(), said
    return folder


def copy(work, to):
    shutil.copytree(work, to, ignore=shutil.ignore_patterns("agent.*", "*.part"))


@pytest.fixture(scope="module", params=["named", "training"])
def recording(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    if request.param == "named":
        return record_and_copy(folder, "torch", *NAMED_STEPS, "told")
    require("torch")
    return record_and_copy(folder, "torch", sys.executable, "-c", TRAINING, folder / "meeting")


def recovered_of(work):
    path = work.with_suffix(".sqlite")
    assert recover(work, str(path)).output == path
    return path


def rows_of(path):
    """Return table → rows, as dictionaries, with texts for the ids of strings."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {
            name: [dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')]
            for (name,) in names.fetchall()
        }
    strings = {row["id"]: row["value"] for row in tables.pop("StringIds")}
    for row in (row for rows in tables.values() for row in rows):
        row |= {name: strings.get(row[name]) for name in ("textId", "nameId") if name in row}
    return tables


def until(instant, rows):
    return [row for row in rows if (row["end"] or row["start"]) <= instant]


def without(rows, *names):
    return {key: value for key, value in rows.items() if key not in names}


def series_of(rows):
    """Return rows by what they are of, if they are samples."""
    found = {}
    for row in rows:
        found.setdefault((row.get("source"), row.get("metric")), []).append(row)
    return found


def manifest(rows):
    return {row["name"]: row["value"] for row in rows["TRACEPROF_MANIFEST"]}


def test_a_recorder_that_was_killed_while_it_gathered_loses_no_row(recording):
    normal = rows_of(recording / "normal.sqlite")
    assert rows_of(recovered_of(recording / "at_the_end")) == normal


def test_of_a_node_that_was_lost_every_row_is_there_until_then(recording):
    """What is not: the end, what came after it, and the window of the profiler that was open."""
    normal = rows_of(recording / "normal.sqlite")
    found = rows_of(recovered_of(recording / "in_the_middle"))
    marks = {row["textId"]: row["start"] for row in normal["NVTX_EVENTS"] if row["end"] is None}
    mark = marks.get("settled", marks["end"])
    other = (*EVENTS, *BY_THE_SECOND, "ThreadNames", "TRACEPROF_MANIFEST", "ANALYSIS_DETAILS")
    other = (*other, "TRACEPROF_ENVIRONMENT")
    assert without(found, *other) == without(normal, *other)
    # How the program ended is not known of a node that was lost.
    told = [row for row in normal["TRACEPROF_ENVIRONMENT"] if row["name"] != "exit_code"]
    assert found["TRACEPROF_ENVIRONMENT"] == told
    # Each of gloo's threads has a name from its first work on, which may come later.
    threads = [row for row in normal["ThreadNames"] if row in found["ThreadNames"]]
    assert found["ThreadNames"] == threads
    assert bool(threads) == bool(normal["ThreadNames"])
    for name in (name for name in EVENTS if normal.get(name)):
        before = until(mark, normal[name])
        assert until(mark, found[name]) == before
        assert 0 < len(before) < len(normal[name])
        # What other threads tell of the last steps may not be on the disk yet, or not have ended.
        begun = [without(row, "end") for row in normal[name]]
        assert all(without(row, "end") in begun for row in found[name])
    for name in (name for name in BY_THE_SECOND if name in normal):
        whole, part = series_of(normal[name]), series_of(found[name])
        assert part
        assert all(rows == whole.get(key, [])[: len(rows)] for key, rows in part.items())
    # Events that were counted and not yet written when the node was lost are reported as lost.
    assert "losses" not in manifest(normal)
    ended = ("exit_code", "ended", "losses")
    assert without(manifest(found), *ended) == without(manifest(normal), *ended)
    assert "exit_code" not in manifest(found)
    assert manifest(found)["ended"] <= manifest(normal)["ended"]


@pytest.fixture(scope="module")
def under_nsys(tmp_path_factory):
    require("nsys")
    with nsys_in_turn():
        return record_and_copy(tmp_path_factory.mktemp("nsys"), "nsys", *NAMED_STEPS, "told")


@pytest.mark.nsys
def test_under_nsys_a_recorder_that_was_killed_while_it_gathered_loses_no_row(under_nsys):
    normal = rows_of(under_nsys / "normal.sqlite")
    found = rows_of(recovered_of(under_nsys / "at_the_end"))
    assert without(found, "EXPORT_META_DATA") == without(normal, "EXPORT_META_DATA")


@pytest.mark.nsys
def test_a_node_that_was_lost_under_nsys_has_the_same_ranges_by_the_hooks(under_nsys):
    """Nsys left no report: times are the hooks' own, and what it alone records is not there."""
    normal = open_trace(under_nsys / "normal.sqlite")
    found = open_trace(recovered_of(under_nsys / "in_the_middle"))
    assert found.recorded == normal.recorded - {"threads", "overheads"}
    assert ranges_and_marks_of(found) == ranges_and_marks_of(normal)[:-1]  # its last work


def ranges_and_marks_of(trace):
    """Return what was named, without times; nsys has marks that tell its clock by ours."""
    marks = trace.marks.to_frame()[trace.marks.to_frame()["name"] != "clock"]
    columns = ["name", "payload", "domain", "process", "thread"]
    both = [
        frame[columns].astype(str).to_numpy().tolist() for frame in (marks, trace.ranges.to_frame())
    ]
    return [*both[0], *both[1]]
