"""Processes that share an id: in PID namespaces of their own, or one after another."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recording.conftest import NAMED_STEPS, record
from traceprof.recording.captured import gather
from traceprof.recording.identities import FIRST_NUMBER, Numbers, ProcessIdentity, numbers_in
from traceprof.recording.orphans import is_running
from traceprof.recording.program import INJECT_FOLDER
from traceprof.recording.spool import read_agent_events, recorded_pids

NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino
OTHER, THIRD = NAMESPACE + 1, NAMESPACE + 2


def leave(folder, identity, *ancestors, n_events=1, **more):
    record = {"pid": identity.pid, "ancestors": ancestors, **more}
    (folder / f"process.{identity}.json").write_text(json.dumps(record))
    lines = [json.dumps({"pid": identity.pid})]
    lines += [json.dumps([i, i + 1, f"of {identity}", 0, 7, "p"]) for i in range(n_events)]
    (folder / f"events.{identity}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_ids_stay_where_one_process_had_them():
    numbers = Numbers(
        [
            ProcessIdentity(7, OTHER, 5),
            ProcessIdentity(7, NAMESPACE, 9),
            ProcessIdentity(7, NAMESPACE, 4),
        ]
    )
    assert numbers.of(ProcessIdentity(7, NAMESPACE, 4)) == 7
    assert {
        numbers.of(ProcessIdentity(7, NAMESPACE, 9)),
        numbers.of(ProcessIdentity(7, OTHER, 5)),
    } == {
        FIRST_NUMBER,
        FIRST_NUMBER + 1,
    }
    assert Numbers([ProcessIdentity(7, OTHER, 5)]).of(ProcessIdentity(7, OTHER, 5)) == 7
    assert numbers.of_pid(7, NAMESPACE, until=8) == 7
    assert numbers.of_pid(7, NAMESPACE, until=10) == numbers.of(ProcessIdentity(7, NAMESPACE, 9))
    assert numbers.of_pid(7, THIRD) not in (7, FIRST_NUMBER, FIRST_NUMBER + 1)


def test_ranks_with_the_same_id_are_two(tmp_path):
    for rank, namespace in enumerate((OTHER, THIRD)):
        main = ProcessIdentity(2, namespace, 100)
        leave(tmp_path, main, 1, rank=rank, n_events=rank + 3)
        leave(tmp_path, ProcessIdentity(5, namespace, 200 + rank), 2, 1, rank=rank, n_events=1)
        (tmp_path / f"children.{main}").write_text(f"{ProcessIdentity(9, namespace, 300)}\n")
        (tmp_path / f"window.{main}.0.json").write_text('{"traceEvents": []}')
    captured = gather(tmp_path)
    assert [one.rank for one in captured.ranks] == [0, 1]
    assert [len(one.pids) for one in captured.ranks] == [3, 3]
    assert not captured.ranks[0].pids & captured.ranks[1].pids
    for rank, one in enumerate(captured.ranks):
        own = captured.of(one.pids)
        names = {row[2] for part in own.events for block in part.blocks() for row in block.ranges}
        assert len(names) == 2
        assert all(name.split(".")[1].startswith(f"{(OTHER, THIRD)[rank]:x}-") for name in names)
        assert [pid for pid, _ in own.windows] == [one.main]
    assert recorded_pids(tmp_path) == []  # here these ids are those of other processes


def test_a_helper_belongs_to_the_process_that_had_the_id_of_its_parent_then(tmp_path):
    first, second = ProcessIdentity(50, NAMESPACE, 10), ProcessIdentity(50, NAMESPACE, 1000)
    leave(tmp_path, first, 4, rank=0, n_events=9)
    leave(tmp_path, second, 4, rank=1, n_events=9)
    leave(tmp_path, ProcessIdentity(60, NAMESPACE, 20), 50, 4, rank=0)
    leave(tmp_path, ProcessIdentity(61, NAMESPACE, 1020), 50, 4, rank=1)
    numbers = numbers_in(tmp_path)
    ranks = {one.rank: one.pids for one in gather(tmp_path).ranks}
    assert ranks == {0: {numbers.of(first), 60}, 1: {numbers.of(second), 61}}


def test_exit_codes_that_an_agent_saw_are_those_of_its_namespace(tmp_path):
    agent, worker = ProcessIdentity(3, OTHER, 1), ProcessIdentity(8, OTHER, 2)
    leave(tmp_path, worker, 3)
    leave(tmp_path, ProcessIdentity(8, NAMESPACE, 1))
    event = {"kind": "failure", "exit_codes": {"8": -9}, "start_ns": 1}
    (tmp_path / f"agent.{agent}.jsonl").write_text(json.dumps(event) + "\n")
    (found,) = read_agent_events(tmp_path)
    assert found["exit_codes"] == {str(numbers_in(tmp_path).of(worker)): -9}


def test_a_process_runs_only_if_it_is_the_one_that_was_started_then():
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert is_running(ProcessIdentity(os.getpid(), NAMESPACE, start))
    assert is_running(ProcessIdentity(os.getpid()))
    assert not is_running(ProcessIdentity(os.getpid(), NAMESPACE, start + 1))
    assert not is_running(ProcessIdentity(os.getpid(), OTHER, start))


def test_a_fork_is_a_process_of_its_own_and_knows_that_of_its_parent():
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from _traceprof_runtime import identity\n"
        "print(os.getpid(), identity.identity(), identity.parent(), flush=True)\n"
        "if not os.fork(): print(os.getpid(), identity.identity(), identity.parent())\n"
        "else: os.wait()\n"
    )
    command = [sys.executable, "-c", code, str(INJECT_FOLDER)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (pid, own), (child_pid, child, parent) = map(str.split, said.splitlines())
    assert own.startswith(f"{pid}.{NAMESPACE:x}-")
    assert child.startswith(f"{child_pid}.{NAMESPACE:x}-")
    assert parent == own


def test_two_ranks_in_pid_namespaces_of_their_own(tmp_path):
    isolate = ["unshare", "-r", "-p", "-f", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*isolate, "true"], check=False).returncode:
        pytest.skip("no PID namespaces can be made here")
    both = f'RANK=0 {" ".join(isolate)} "$@" & RANK=1 {" ".join(isolate)} "$@"; wait'
    command = ["sh", "-c", both, "sh", *NAMED_STEPS, "0"]
    recorded = record(tmp_path, command, "-o", f"{tmp_path}/run/", "--with", "torch")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "lost" not in recorded.done.stderr
    files = sorted(path.name for path in (tmp_path / "run").glob("*.sqlite"))
    assert files == ["rank0.sqlite", "rank1.sqlite"]
