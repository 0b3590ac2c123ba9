"""What goes wrong around a recording: disks, folders, profilers, other processes."""

import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recording.conftest import (
    NAMED_STEPS,
    TOOLS,
    TORCHRUN,
    command_of,
    environment_of_test,
    finished,
    in_own_mounts,
    nsys_of,
    on_small_disk,
    record,
    require_tool,
)
from tests.requirements import require
from traceprof.formats import open_trace
from traceprof.formats.nsys.reports import find_importer


def n_work(recorded):
    return int((recorded.trace.ranges.to_frame()["name"] == "work").sum())


def start_recorder(path, tool, how, **environment):
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-m", "traceprof", "record", "-o", path, "--with", tool),
            *("--", *NAMED_STEPS, how),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=environment_of_test(**environment),
    )
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == "waiting\n"
    return recorder


def test_a_spool_that_cannot_grow_does_not_stop_the_program(tmp_path):
    command = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *NAMED_STEPS, "many"]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch")
    assert recorded.done.returncode == 0
    assert "events are lost; cannot write" in recorded.done.stderr
    assert 3 <= n_work(recorded) < 1503


def test_a_disk_that_is_full_keeps_what_was_captured(tmp_path):
    done = subprocess.run(
        [
            *("sh", "-c", 'ulimit -f 32; exec "$@"', "sh", sys.executable, "-m", "traceprof"),
            *("record", "-o", "run.sqlite", "--with", "torch", "--", *NAMED_STEPS, "0"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment_of_test(),
        check=False,
    )
    assert done.returncode == 5
    match = re.search(
        r"run.sqlite: cannot be written .*; run traceprof recover (\S+) to", done.stderr
    )
    assert match, done.stderr
    assert list(Path(match.group(1)).glob("events.*.jsonl"))
    assert list(tmp_path.iterdir()) == []
    shutil.rmtree(match.group(1))


def test_a_folder_that_is_read_only_is_said_before_anything_runs(tmp_path):
    recorded = record(Path("/proc/run.sqlite"), ["touch", str(tmp_path / "ran")])
    assert recorded.done.returncode == 1
    assert "/proc: cannot be written to" in recorded.done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("tool", TOOLS)
def test_a_program_that_closes_its_stdout(tmp_path, tool):
    require_tool(tool)
    recorded = record(tmp_path / "run.sqlite", [*NAMED_STEPS, "close"], "--with", tool)
    assert recorded.done.returncode == 0
    assert n_work(recorded) == 3


@pytest.mark.parametrize("tool", TOOLS)
def test_one_of_two_ranks_dies(tmp_path, tool):
    require_tool(tool)
    both = 'RANK=0 "$@" 0 & RANK=1 "$@" kill; code=$?; wait; exit $code'
    command = ["sh", "-c", both, "sh", *NAMED_STEPS]
    recorded = record(tmp_path / "run.sqlite", command, "--with", tool)
    assert recorded.done.returncode == 137
    processes = recorded.trace.processes.to_frame()
    assert sorted(processes.loc[processes["rank"] >= 0, "rank"]) == [0, 1]
    assert n_work(recorded) == 6


@pytest.mark.parametrize("tool", TOOLS)
def test_a_second_interrupt_terminates_a_program_that_ignores_the_first(tmp_path, tool):
    require_tool(tool)
    recorder = start_recorder(tmp_path / "run.sqlite", tool, "stubborn")
    recorder.send_signal(signal.SIGINT)
    assert recorder.stdout.readline() == "interrupted\n"
    recorder.send_signal(signal.SIGINT)
    _, said = recorder.communicate(timeout=60)
    assert recorder.returncode == 128 + signal.SIGTERM, said
    assert (open_trace(tmp_path / "run.sqlite").ranges.to_frame()["name"] == "work").sum() == 3


@pytest.mark.torch
@pytest.mark.parametrize("tool", TOOLS)
def test_a_rank_of_torchrun_that_is_killed_takes_the_others_with_it(tmp_path, tool):
    """torchrun ends the other rank and fails: both have their traces, and nothing goes on."""
    require_tool(tool)
    require("torch")
    code = (
        "import glob, os, signal, sys, time, torch, traceprof\n"
        "rank, is_far = os.environ['RANK'], sys.argv[1]\n"
        "events = f'{os.environ[\"TRACEPROF_DIR\"]}/events.{os.getpid()}.*'\n"
        "for i in range(6000):\n"
        "    with traceprof.step(), traceprof.range('work'): time.sleep(.01)\n"
        "    if sum(open(one).read().count('\"work\"') for one in glob.glob(events)) < 20:\n"
        "        continue\n"
        "    if rank == '0': open(is_far, 'w').close()\n"
        "    elif os.path.exists(is_far): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    program = tmp_path / "train.py"
    program.write_text(code)
    folder = tmp_path / "run"
    command = [*TORCHRUN, str(program), str(tmp_path / "far")]
    recorded = record(tmp_path, command, "-o", f"{folder}/", "--with", tool)
    assert recorded.done.returncode == 1, recorded.done.stderr
    for rank in (0, 1):
        ranges = open_trace(folder / f"rank{rank}.sqlite").ranges.to_frame()
        assert (ranges["name"] == "work").sum() >= 20


@pytest.mark.parametrize("tool", TOOLS)
def test_a_python_without_torch_is_said(tmp_path, tool):
    """In an environment of its own, which has no torch."""
    require_tool(tool)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    command = [str(tmp_path / "bare" / "bin" / "python"), "-c", "import torch"]
    recorded = record(tmp_path / "run.sqlite", command, "--with", tool)
    assert recorded.done.returncode == 1
    assert "No module named 'torch'" in recorded.done.stderr
    assert "no ranges recorded because the program did not import torch" in recorded.done.stderr


def test_a_disk_that_is_full_from_the_spool_to_the_trace(tmp_path):
    """Everything is on a disk of 64 kB, less than the events take: the program does not notice."""
    disk = tmp_path / "disk"
    recorded = record(
        disk / "run.sqlite",
        [*NAMED_STEPS, "many"],
        *("--with", "torch"),
        prefix=on_small_disk(disk, "64k"),
        TMPDIR=str(disk),
    )
    assert "events are lost; cannot write" in recorded.done.stderr
    assert "No space left on device" in recorded.done.stderr
    assert recorded.done.returncode == 5
    assert "run.sqlite: cannot be written" in recorded.done.stderr
    (events,) = (tmp_path / "disk.copy").glob("traceprof-*/events.*.jsonl")
    assert events.stat().st_size > 20_000


@pytest.mark.nsys
def test_nsys_on_a_disk_that_is_full(tmp_path):
    """nsys itself ends in whatever way: the program goes on, and what fits on the disk is there."""
    require("nsys")
    disk = tmp_path / "disk"
    recorded = record(
        tmp_path / "run.sqlite",
        [*NAMED_STEPS, "late"],
        *("--with", "nsys"),
        prefix=on_small_disk(disk, "100k"),
        TMPDIR=str(disk),
    )
    assert recorded.done.returncode == 3, recorded.done.stderr
    assert n_work(recorded) == 4


@pytest.mark.nsys
def test_nsys_that_fails_once_is_started_again(tmp_path):
    nsys = require("nsys")
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *--help) exec {nsys} "$@";; esac\n'
        f'[ "$1" = profile ] && [ ! -e {tmp_path}/failed ] && {{ touch {tmp_path}/failed; '
        f'echo Local Endpoint is not available.; exit 1; }}\nexec {nsys} "$@"\n'
    )
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    recorded = record(
        tmp_path / "run.sqlite", [*NAMED_STEPS, "3"], "--with", "nsys", "-v", PATH=path
    )
    assert recorded.done.returncode == 3
    assert "attempt 1 of nsys failed: Local Endpoint is not available." in recorded.done.stderr
    assert "with nsys: " in recorded.done.stderr
    assert n_work(recorded) == 3


HIDDEN = "mount -t tmpfs tmpfs {0}"
LACKING = HIDDEN + " && printf '#!/bin/sh\\necho libpfm.so.4: cannot open >&2; exit 127' > {1}"


@pytest.mark.nsys
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (HIDDEN, "has no QdstrmImporter to convert it"),
        (LACKING + " && chmod +x {1}", "cannot start (libpfm.so.4"),
    ],
    ids=["none", "lacking"],
)
def test_nsys_whose_importer_does_not_start_leaves_the_stream(tmp_path, how, said):
    """The real one, with the folder of its host programs hidden, or filled with one that fails."""
    importer = find_importer(require("nsys"))
    assert importer is not None
    shell = f'{how.format(importer.parent, importer)} && exec "$@"'
    recorded = record(
        tmp_path / "run.sqlite",
        [*NAMED_STEPS, "3"],
        *("--with", "nsys"),
        prefix=[*in_own_mounts(), shell, "sh"],
    )
    assert recorded.done.returncode == 3, recorded.done.stderr
    assert said in recorded.done.stderr
    assert n_work(recorded) == 3
    stream = tmp_path / "run.qdstrm"
    assert stat.S_IMODE(stream.stat().st_mode) == 0o600
    # What is advised, where the importer starts: it imports the stream, and shows it.
    (advised,) = re.findall(r"run `(traceprof [^`]+)`", recorded.done.stderr)
    done = finished(
        [sys.executable, "-m", *advised.split()], tmp_path, environment_of_test(TRACEPROF_CACHE="0")
    )
    assert done.returncode == 0, done.stderr
    assert (open_trace(stream).ranges["name"] == "work").sum() == 3


@pytest.mark.nsys
def test_nsys_that_is_stopped_is_killed_once_the_program_has_ended(tmp_path):
    """The real one, which does not move any more: as when it hangs."""
    require("nsys")
    recorder = start_recorder(tmp_path / "run.sqlite", "nsys", "told", TRACEPROF_WATCHDOG_S="1")
    (nsys,) = nsys_of(recorder)
    os.kill(nsys, signal.SIGSTOP)
    _, said = recorder.communicate("end\n", timeout=60)
    assert "the program has ended, but the profiler hangs" in said
    assert "the exit code may be lost" in said
    assert "without it" not in said
    assert recorder.returncode == 3  # what nsys started the program with knows
    assert (open_trace(tmp_path / "run.sqlite").ranges.to_frame()["name"] == "work").sum() == 4


@pytest.mark.nsys
@pytest.mark.parametrize("is_seen_late", [False, True])
def test_nsys_killed_in_the_middle_leaves_program_and_trace_whole(tmp_path, is_seen_late):
    """Whether the recorder looks before the program has ended, too, or afterwards."""
    require("nsys")
    recorder = start_recorder(tmp_path / "run.sqlite", "nsys", "told")
    (nsys,) = nsys_of(recorder)
    session = re.search(rb"--session-new=traceprof-\w+", command_of(nsys))
    assert session is not None
    ended = os.pidfd_open(program_under(recorder))
    if is_seen_late:
        recorder.send_signal(signal.SIGSTOP)
    os.kill(nsys, signal.SIGKILL)
    first = "" if is_seen_late else recorder.stderr.readline()
    recorder.stdin.write("end\n")
    recorder.stdin.flush()
    select.select([ended], [], [])
    os.close(ended)
    recorder.send_signal(signal.SIGCONT)
    _, said = recorder.communicate(timeout=60)
    assert f"the program {'kept' if is_seen_late else 'keeps'} running" in first + said
    assert recorder.returncode == 3, said
    assert (open_trace(tmp_path / "run.sqlite").ranges.to_frame()["name"] == "work").sum() == 4
    left = [pid for pid in all_pids() if session.group().partition(b"=")[2] in command_of(pid)]
    assert left == []


def program_under(recorder):
    command = b"".join(os.fsencode(f"{word}\0") for word in (*NAMED_STEPS, "told"))
    found = [pid for pid in all_pids() if command_of(pid) == command]
    return next(pid for pid in found if recorder.pid in above(pid))


def above(pid):
    """Return the parents of a process, and theirs; nsys starts programs from any of its threads."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return []
    return [parent, *above(parent)] if parent else []


def all_pids():
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def fake_nsys(folder, profile):
    """Put an nsys on a PATH of its own that answers ``profile`` with a shell script."""
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(
        "#!/bin/sh\n"
        'command=$1; shift\ncase "$command $*" in\n'
        '  *--help) echo "  --output="; exit 0;;\n'
        f"  profile*) {profile};;\n"
        "esac\nexit 1\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:{os.environ['PATH']}"


RUN_PROGRAM = 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"'


def test_nsys_that_never_starts_the_program_gives_way_to_the_embedded_recorder(tmp_path):
    path = fake_nsys(tmp_path / "bin", "echo Agent launcher failed.; exit 1")
    recorded = record(tmp_path / "run.sqlite", [*NAMED_STEPS, "3"], "--with", "nsys", PATH=path)
    assert recorded.done.returncode == 3
    assert "nsys did not start the program (Agent launcher failed.)" in recorded.done.stderr
    assert "with torch" in recorded.done.stderr
    assert n_work(recorded) == 3


LEFT_AGENT = 'setsid tail -f -- /dev/null "x$*" >/dev/null 2>&1 &'
"""Leaves a process behind that has the name of the session on its command line."""


def test_nsys_that_hangs_before_it_starts_the_program_gives_way(tmp_path):
    path = fake_nsys(tmp_path / "bin", f"{LEFT_AGENT} exec sleep 1000")
    recorded = record(
        tmp_path / "run.sqlite",
        [*NAMED_STEPS, "3"],
        *("--with", "nsys"),
        PATH=path,
        TRACEPROF_START_S="0.1",
    )
    assert recorded.done.returncode == 3
    assert "nsys did not start the program (no start within 0.1 s)" in recorded.done.stderr
    assert n_work(recorded) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_nsys_has_started_the_program_ends_everything(tmp_path, number):
    """Nothing is left (no_orphans looks), and the program is not run after all."""
    path = fake_nsys(tmp_path / "bin", f"{LEFT_AGENT} echo up >{tmp_path}/up; exec sleep 1000")
    os.mkfifo(tmp_path / "up")
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-m", "traceprof", "record", "-o", tmp_path / "run.sqlite"),
            *("--with", "nsys", "--", "touch", tmp_path / "ran"),
        ],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment_of_test(PATH=path),
    )
    assert (tmp_path / "up").read_text() == "up\n"
    recorder.send_signal(number)
    _, said = recorder.communicate(timeout=60)
    assert recorder.returncode == 128 + number, said
    assert "stopped before nsys started the program" in said
    assert not (tmp_path / "ran").exists()


def test_a_leftover_that_keeps_nsys_from_starting_is_removed(tmp_path):
    """In shared memory of its own, where the fake fails as long as the file is there."""
    own_memory = (
        "mount -t tmpfs tmpfs /dev/shm && "
        r'printf "\\1\\0\\0\\0" >/dev/shm/NSys-1 && exec "$@"'
    )
    fails = "[ -e /dev/shm/NSys-1 ] && { echo Agent launcher failed.; exit 1; }"
    path = fake_nsys(tmp_path / "bin", f"{fails}; {RUN_PROGRAM}; exit")
    recorded = record(
        tmp_path / "run.sqlite",
        [*NAMED_STEPS, "3"],
        *("--with", "nsys"),
        prefix=[*in_own_mounts(), own_memory, "sh"],
        PATH=path,
    )
    assert recorded.done.returncode == 3, recorded.done.stderr
    assert "removed /dev/shm/NSys-1, a leftover" in recorded.done.stderr
    assert "recorded with torch" not in recorded.done.stderr


def test_nsys_that_leaves_no_report_is_told_from_one_that_does(tmp_path):
    path = fake_nsys(tmp_path / "bin", f"{RUN_PROGRAM}; code=$?; echo No reports; exit $code")
    recorded = record(tmp_path / "run.sqlite", [*NAMED_STEPS, "3"], "--with", "nsys", PATH=path)
    assert recorded.done.returncode == 3
    assert "nsys wrote no report (No reports)" in recorded.done.stderr
    assert n_work(recorded) == 3


def test_nsys_that_hangs_after_the_program_is_ended(tmp_path):
    path = fake_nsys(tmp_path / "bin", f"{RUN_PROGRAM}; exec sleep 1000")
    recorded = record(
        tmp_path / "run.sqlite",
        [*NAMED_STEPS, "0"],
        *("--with", "nsys"),
        PATH=path,
        TRACEPROF_WATCHDOG_S="0.5",
    )
    assert "the program has ended, but the profiler hangs" in recorded.done.stderr
    assert n_work(recorded) == 3
