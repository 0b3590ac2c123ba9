"""However a process ends, what it kept and what it is said to have lost is all that it made."""

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from traceprof.measures.lost_work import is_incompleteness_warning
from traceprof.recording.captured import gather
from traceprof.recording.identities import identity_of
from traceprof.recording.program import INJECT_FOLDER
from traceprof.recording.spool import read_events

PLAN = """
import json, os, resource, signal, sys
plan = json.loads(sys.argv[1])
from _traceprof_runtime import session, settings
settings.FLUSH_PERIOD_S = 1e6
session.begin()
spool = session.spool()
if plan["how"] == "filled":
    limit = os.stat(spool.path).st_size + plan["at"] * 25
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for i in range(plan["end"]):
    kind = i % 4
    if kind == 0:
        spool.push("range " + "x" * (i % 30), i)
        spool.pop()
    elif kind == 1:
        spool.mark("mark", i)
    elif kind == 2:
        spool.end(spool.start("span"))
    else:
        spool.collective(1, 2, "allreduce", 4, 5, {})
    if i + 1 in plan["flushes"]:
        spool.flush()
    if plan["how"] == "closed" and i == plan["at"]:
        os.closerange(3, 256)
        mine = [open(plan["mine"] + str(k), "w") for k in range(8)]
    if plan["how"] == "killed" and i == plan["at"]:
        os.kill(os.getpid(), signal.SIGKILL)
if plan["is_exiting"]:
    os._exit(0)
"""


def run_plan(tmp_path: Path, code: str = PLAN, **plan: object) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "work"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(INJECT_FOLDER), "TRACEPROF_DIR": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code, json.dumps(plan)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("how", ["killed", "filled", "closed"])
@pytest.mark.parametrize("seed", range(20))
def test_kept_and_lost_is_all_that_was_made(tmp_path, how, seed):
    chance = random.Random(f"{how} {seed}")
    end = chance.randint(1, 400)
    plan = {
        "how": how,
        "end": end,
        "at": chance.randrange(end),
        "flushes": sorted(chance.sample(range(1, end + 1), min(end, chance.randint(0, 4)))),
        "mine": str(tmp_path / "mine"),
        "is_exiting": chance.random() < 0.5,
    }
    done = run_plan(tmp_path, **plan)
    assert done.returncode == (-signal.SIGKILL if how == "killed" else 0), done.stderr
    n_made = plan["at"] + 1 if how == "killed" else end
    (events,) = gather(tmp_path / "work").events
    n_kept = sum(len(part) for block in events.blocks() for part in block[1:])
    assert events.n_made == n_made
    assert n_kept == events.n_events
    assert n_kept + events.n_lost == n_made
    for loss in events.losses():
        assert f"lost {n_made - n_kept:,} of {n_made:,} events" in loss
        assert is_incompleteness_warning(loss)
    assert bool(events.losses()) == (n_kept < n_made)
    if how == "closed":
        assert [(tmp_path / f"mine{k}").read_text() for k in range(8)] == [""] * 8
        assert plan["is_exiting"] or n_kept == n_made


def test_a_kill_before_anything_was_written_is_counted(tmp_path):
    run_plan(tmp_path, how="killed", end=385, at=384, flushes=[])
    captured = gather(tmp_path / "work")
    (loss,) = captured.losses()
    (pid,) = captured.pids()
    assert loss == (
        f"process {pid} lost 385 of 385 events: the process was killed, or ended without Python's "
        "exit handlers"
    )


def test_what_a_forked_process_does_is_not_counted_as_its_parents(tmp_path):
    code = (
        PLAN + "\nif not os.fork():\n    for _ in range(9): spool.mark('child')\n    os._exit(0)\n"
    )
    code += "os.wait()"
    plan = {"how": "", "end": 10, "flushes": [], "is_exiting": False}
    assert run_plan(tmp_path, code, **plan).returncode == 0
    (events,) = read_events(tmp_path / "work")
    assert (events.n_made, events.n_events, events.has_ended) == (10, 10, True)


def test_a_program_that_replaces_itself_goes_on_counting(tmp_path):
    again = "\nif plan['end'] == 10:\n    plan['end'] = 7\n    spool.flush()\n"
    again += "    os.execv(sys.executable, [sys.executable, '-c', CODE, json.dumps(plan)])\n"
    code = f"CODE = {PLAN!r}\n{PLAN}{again}"
    plan = {"how": "", "end": 10, "flushes": [], "is_exiting": False}
    assert run_plan(tmp_path, code, **plan).returncode == 0
    (events,) = gather(tmp_path / "work").events
    assert (events.n_made, events.n_events, events.losses()) == (17, 17, [])


def test_a_file_that_was_removed_is_not_made_again_nor_written_elsewhere(tmp_path):
    """A file that the program makes next may have its descriptor, and its inode."""
    new = f"files = [os.open(f'{tmp_path}/mine{{k}}', os.O_WRONLY | os.O_CREAT) for k in range(9)]"
    new = f"os.unlink(spool.path); os.closerange(3, 99); {new}"
    code = PLAN.replace("if plan[", f"{new}\nif plan[", 1)
    plan = {"how": "", "end": 10, "flushes": [], "is_exiting": False}
    done = run_plan(tmp_path, code, **plan)
    assert done.stderr.count("events are lost; cannot write") == 1
    assert {(tmp_path / f"mine{k}").read_bytes() for k in range(9)} == {b""}
    (events,) = gather(tmp_path / "work").events
    assert events.losses() == [
        f"process {events.pid} lost 10 of 10 events: the event file was removed or replaced while "
        "the program ran"
    ]


def test_where_the_count_cannot_be_mapped_its_end_has_it(tmp_path):
    """A page of a file that a disk has no room for would end the program (SIGBUS)."""
    never = "from _traceprof_runtime import spool as x\nx._IN_PLACE_FILE_SYSTEMS = set()\n"
    plan = {"how": "", "end": 10, "flushes": [4], "is_exiting": False}
    assert run_plan(tmp_path, never + PLAN, **plan).returncode == 0
    assert list((tmp_path / "work").glob("counts.*")) == []
    (events,) = read_events(tmp_path / "work")
    assert (events.n_made, events.losses()) == (10, [])
    (end,) = (tmp_path / "work").glob("end.*")
    end.unlink()
    (events,) = read_events(tmp_path / "work")
    assert events.n_made is None
    (loss,) = events.losses()
    assert "lost an unknown number of events: the process was killed" in loss


def test_a_process_that_still_runs_is_not_said_to_be_killed(tmp_path):
    run_plan(tmp_path, how="killed", end=3, at=2, flushes=[])
    (events,) = read_events(tmp_path / "work")
    (loss,) = replace(events, is_running=True).losses()
    assert loss.endswith("lost 3 of 3 events: the process still ran when the trace was written")


def test_what_was_thinned_out_on_purpose_is_not_lost(tmp_path):
    few = "from _traceprof_runtime import spool as module\nmodule._ROWS_PER_HALVING = 5\n"
    code = few + PLAN.replace('"range " + "x" * (i % 30)', '"mine"')
    plan = {"how": "killed", "end": 400, "at": 399, "flushes": list(range(1, 390))}
    run_plan(tmp_path, code, **plan)
    (events,) = read_events(tmp_path / "work")
    assert events.n_thinned > 50
    assert (events.n_made, events.n_lost) == (400, 11)


def test_the_size_that_was_asked_for_is_a_reason(tmp_path):
    code = "from _traceprof_runtime import settings\nsettings.MAX_BYTES = 2000\n" + PLAN
    plan = {"how": "", "end": 400, "flushes": [100, 200], "is_exiting": False}
    run_plan(tmp_path, code, **plan)
    (events,) = read_events(tmp_path / "work")
    assert events.losses() == [
        f"process {events.pid} lost 300 of 400 events: --max-size was reached"
    ]


def test_a_full_disk_from_the_start_is_said(tmp_path):
    (tmp_path / "process.7.f0-a.json.tmp").touch()
    (loss,) = gather(tmp_path).losses()
    assert "process 7 could not write its record" in loss
    assert is_incompleteness_warning(loss)
    assert identity_of(tmp_path / "process.7.f0-a.json.tmp") == (7, 0xF0, 10)


def test_a_damaged_count_stops_nothing(tmp_path):
    run_plan(tmp_path, how="", end=10, flushes=[], is_exiting=False)
    (path,) = (tmp_path / "work").glob("counts.*")
    (end,) = (tmp_path / "work").glob("end.*")
    whole = path.read_bytes()
    chance = random.Random(1)
    (tmp_path / "work" / "events.of-nobody").touch()
    end.write_text('{"made": "' + 9_999 * "9" + '", "ended": 7}')
    for damaged in (b"", whole[:100], *(chance.randbytes(4096) for _ in range(20))):
        path.write_bytes(damaged)
        assert gather(tmp_path / "work").events[0].n_made is None
    for _ in range(20):
        path.write_bytes(whole[:8] + chance.randbytes(4088))
        assert all(map(str, gather(tmp_path / "work").losses()))
