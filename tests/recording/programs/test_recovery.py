"""What a recorder has captured outlives the recorder, with the real tools."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.recording.conftest import (
    NAMED_STEPS,
    TOOLS,
    end_processes_marked,
    environment_of_test,
    finished,
    nsys_of,
    require_tool,
)
from tests.test_secrets import COMMANDS, PLANTED
from traceprof.cli import app
from traceprof.formats import open_trace
from traceprof.recording.orphans import is_alive
from traceprof.recording.request import RecordRequest
from traceprof.recording.work_folder import new_work_folder, notes_of

MARK = "TRACEPROF_TEST_KILLED"


def traceprof(folder, *arguments):
    """Run a command in this process: another one would be imported for a second each time."""
    command = [str(argument) for argument in arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        done = CliRunner().invoke(app, command)
    return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)


def start(folder, tool, *program, options=(), **environment):
    """Start a recorder whose work folder lies in ``folder``; wait for the program's first line."""
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-m", "traceprof", "record", "-o", folder / "run.sqlite"),
            *("--with", tool, *options, "--", *program),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=environment_of_test(TMPDIR=str(folder), **environment),
    )
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == "waiting\n"
    return recorder


def work_folder(folder):
    (found,) = (path.parent for path in folder.glob("traceprof-*/recording.json"))
    return found


def wait_for_samples(folder):
    """Return once the recorder has written new samples of the machine: it does so by the second."""
    path = folder / "samples.jsonl"
    n_bytes = path.stat().st_size if path.exists() else 0
    for _ in range(6_000):
        if path.exists() and path.stat().st_size > n_bytes:
            return
        time.sleep(0.01)
    pytest.fail(f"{path} was not written")


def n_work(path):
    return int((open_trace(path).ranges.to_frame()["name"] == "work").sum())


@pytest.mark.parametrize("tool", TOOLS)
def test_a_recorder_that_is_killed_while_the_program_goes_on(tmp_path, tool):
    """The program, and nsys, end by themselves: all of it is recovered."""
    require_tool(tool)
    recorder = start(tmp_path, tool, *NAMED_STEPS, "told")
    folder = work_folder(tmp_path)
    in_use = traceprof(tmp_path, "recover", folder)
    assert in_use.returncode == 2
    assert "its recorder still runs" in in_use.stderr
    wait_for_samples(folder)
    recorder.kill()
    recorder.communicate("end\n")  # to the end of the program: it has our pipes
    done = traceprof(tmp_path, "recover", folder)
    assert done.returncode == 0, done.stderr
    assert f"recorded 8 ranges of 1 process with {tool}" in done.stderr
    assert not folder.exists()
    trace = open_trace(tmp_path / "run.sqlite")
    assert n_work(tmp_path / "run.sqlite") == 4
    assert {"processes", "samples", "environment"} <= trace.recorded
    assert trace.samples.to_frame()["metric"].tolist().count("loss") == 3
    assert len(trace.samples.to_frame()) > 3  # and those of the machine
    if tool == "nsys":
        assert "nsys" in trace.info.profiler.lower() or "Nsight" in trace.info.profiler


@pytest.mark.parametrize("tool", TOOLS)
def test_a_node_that_is_lost(tmp_path, tool):
    """Everything is killed at once; the folder is looked at elsewhere, under another name."""
    require_tool(tool)
    recorder = start(tmp_path, tool, *NAMED_STEPS, "wait", **{MARK: str(tmp_path)})
    end_processes_marked(f"{MARK}={tmp_path}", signal.SIGKILL, 10)
    recorder.communicate()
    listed = traceprof(tmp_path, "recover")
    folder = work_folder(tmp_path)
    assert f"{folder}  started" in listed.stdout
    assert "named_steps.py wait" in listed.stdout
    moved = folder.rename(tmp_path / "moved")
    for command in ("info", "analyze"):
        told = traceprof(tmp_path, command, moved)
        assert told.returncode == 3
        assert f"run `traceprof recover {moved}` to write its trace" in told.stderr
    done = traceprof(tmp_path, "recover", moved, "-o", f"{tmp_path}/rescued/", "--keep")
    assert done.returncode == 0, done.stderr
    assert n_work(tmp_path / "rescued" / "rank0.sqlite") == 3
    assert moved.is_dir()
    assert traceprof(tmp_path, "recover", moved).returncode == 0
    assert n_work(tmp_path / "run.sqlite") == 3
    assert not moved.exists()


def test_a_program_that_still_runs_is_said_and_its_folder_stays(tmp_path):
    recorder = start(tmp_path, "torch", *NAMED_STEPS, "wait")
    folder = work_folder(tmp_path)
    recorder.kill()
    recorder.wait()
    done = traceprof(tmp_path, "recover", folder)
    assert re.search(rf"process \d+ still runs; trace ends now, {folder} is kept", done.stderr)
    assert n_work(tmp_path / "run.sqlite") == 3
    assert folder.is_dir()
    end_processes_marked(f"TRACEPROF_DIR={folder}", signal.SIGTERM, 10)
    recorder.communicate()


def test_a_folder_that_is_none_is_said(tmp_path):
    done = traceprof(tmp_path, "recover", tmp_path)
    assert done.returncode == 3
    assert "not a work folder of a recording" in done.stderr
    assert "no interrupted recording found here" in traceprof(tmp_path, "recover").stderr


def test_a_recorder_that_is_killed_before_the_program_starts(tmp_path):
    """There is nothing to recover, and the exit code says so; the folder stays."""
    request = RecordRequest(("python",), tmp_path / "run.sqlite")
    with new_work_folder(notes_of(request, "torch", {})) as folder:
        left = folder.rename(tmp_path / "left")
    done = traceprof(tmp_path, "recover", left)
    assert done.returncode == 5
    assert "nothing was captured; no trace was written" in done.stderr
    assert left.is_dir()
    assert not (tmp_path / "run.sqlite").exists()


WITH_PIPE = """
import os, runpy, sys
os.mkfifo(os.environ["TRACEPROF_DIR"] + "/agent.1.jsonl")
sys.argv = sys.argv[1:]
print("waiting", flush=True)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Leaves a pipe among the events, at which whoever gathers them waits."""


@pytest.fixture
def gathering(tmp_path):
    """A recorder that gathers, and the pipe at which it waits."""
    recorder = start(tmp_path, "torch", sys.executable, "-c", WITH_PIPE, *NAMED_STEPS[1:], "0")
    pipe = work_folder(tmp_path) / "agent.1.jsonl"
    writer = os.open(pipe, os.O_WRONLY)
    # A signal between opening and reading would be seen when the reading ends, which it never does.
    where = Path(f"/proc/{recorder.pid}/wchan")
    for _ in range(1_000):
        if "pipe_read" in where.read_text():
            break
        time.sleep(0.01)
    return recorder, pipe, writer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_trace_is_written_waits(tmp_path, gathering, number):
    recorder, _, writer = gathering
    recorder.send_signal(number)
    assert "traceprof is writing the trace (interrupt again to stop)" in recorder.stderr.readline()
    os.close(writer)
    _, said = recorder.communicate(timeout=60)
    assert recorder.returncode == 0, said
    assert n_work(tmp_path / "run.sqlite") == 3


def test_a_second_signal_says_where_everything_is(tmp_path, gathering):
    recorder, pipe, writer = gathering
    recorder.send_signal(signal.SIGINT)
    recorder.stderr.readline()
    recorder.send_signal(signal.SIGINT)
    _, said = recorder.communicate(timeout=60)
    assert recorder.returncode == 5
    assert "interrupted before writing the trace" in said
    assert f"run traceprof recover {pipe.parent} to write the trace" in said
    assert not (tmp_path / "run.sqlite").exists()
    os.close(writer)
    pipe.unlink()
    done = traceprof(tmp_path, "recover", pipe.parent)
    assert done.returncode == 0, done.stderr
    assert n_work(tmp_path / "run.sqlite") == 3
    assert (open_trace(tmp_path / "run.sqlite").processes.to_frame()["rank"] == -1).all()


@pytest.fixture
def interrupted(tmp_path):
    """An nsys whose program has just ended, and that was sent one Ctrl-C, as by a terminal."""
    require_tool("nsys")
    recorder = start(tmp_path, "nsys", *NAMED_STEPS, "told", options=["-v"])
    text = (work_folder(tmp_path) / "started").read_text()
    program = int(text.split()[0])
    recorder.stdin.write("end\n")
    recorder.stdin.flush()
    while is_alive(program):
        time.sleep(0.001)
    interrupt_group_of(recorder)
    return recorder


def interrupt_group_of(recorder):
    """Interrupt what is in the foreground with a recorder: what has its group, or its nsys's."""
    own = os.getpgid(recorder.pid)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, LookupError, ValueError):
            pid, fields = int(folder.name), (folder / "stat").read_text().rpartition(")")[2].split()
            is_child = int(fields[1]) == recorder.pid
            if pid == recorder.pid or (is_child and int(fields[2]) == own):
                os.kill(pid, signal.SIGINT)


def test_an_interrupt_while_nsys_writes_its_report_waits(tmp_path, interrupted):
    _, said = interrupted.communicate(timeout=120)
    assert interrupted.returncode == 3, said
    assert "traceprof is writing the trace (interrupt again to stop)" in said
    assert "nsys cannot convert it" not in said
    assert n_work(tmp_path / "run.sqlite") == 4
    assert "Nsight" in open_trace(tmp_path / "run.sqlite").info.profiler


def test_a_second_one_leaves_nsys_to_it(tmp_path, interrupted):
    """Sent when the first was heard: of two that wait the system hands over one."""
    nsys = nsys_of(interrupted)
    for pid in nsys:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    lines = iter(interrupted.stderr.readline, "")
    assert any("interrupt again to stop" in line for line in lines)
    interrupt_group_of(interrupted)
    interrupted.wait(timeout=120)
    for pid in nsys:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    said = interrupted.communicate(timeout=120)[1]
    assert interrupted.returncode == 5, said
    folder = work_folder(tmp_path)
    assert f"run traceprof recover {folder} to write the trace" in said
    done = traceprof(tmp_path, "recover", folder)
    assert done.returncode == 0, done.stderr
    assert "nsys cannot convert it" not in done.stderr
    assert n_work(tmp_path / "run.sqlite") == 4
    assert "Nsight" in open_trace(tmp_path / "run.sqlite").info.profiler


@pytest.mark.parametrize("tool", TOOLS)
def test_a_program_that_does_not_end_after_sigterm_has_its_trace_written_and_is_ended(
    tmp_path, tool
):
    require_tool(tool)
    recorder = start(tmp_path, tool, *NAMED_STEPS, "deaf", options=["--grace", "0.5s"])
    recorder.send_signal(signal.SIGTERM)
    _, said = recorder.communicate(timeout=120)
    assert recorder.returncode == 128 + signal.SIGTERM, said
    assert "if it still runs after 0.5 s (--grace), traceprof writes the trace and kills it" in said
    assert "the program still runs; traceprof writes the trace recorded so far" in said
    assert "processes that did not exit" in said
    assert n_work(tmp_path / "run.sqlite") == 3


def test_a_launcher_that_waits_for_ever_does_not_keep_the_trace_of_its_workers(tmp_path):
    """As torchrun does in its exit barrier, where another agent has died."""
    launcher = 'trap "" TERM; "$@"; echo waiting; sleep 1000 & wait; wait'
    command = ["sh", "-c", launcher, "sh", *NAMED_STEPS, "0"]
    recorder = start(tmp_path, "torch", *command, options=["--grace", "0.5s"])
    recorder.send_signal(signal.SIGTERM)
    _, said = recorder.communicate(timeout=60)
    assert recorder.returncode == 128 + signal.SIGTERM, said
    assert n_work(tmp_path / "run.sqlite") == 3


@pytest.mark.parametrize("tool", TOOLS)
def test_no_planted_secret_is_in_what_is_left_or_recovered(tmp_path, tool):
    """All that are known, on one command line; nsys's own report holds environments until then."""
    require_tool(tool)
    arguments = [argument for command in COMMANDS for argument in command]
    secrets = {secret.encode() for secret in PLANTED}
    recorder = start(tmp_path, tool, *NAMED_STEPS, "told", *arguments, WANDB_API_KEY="envsecret77")
    folder = work_folder(tmp_path)
    recorder.kill()
    recorder.communicate("end\n")
    for path in folder.iterdir():
        if path.suffix not in (".qdstrm", ".nsys-rep"):
            assert [one for one in secrets if one in path.read_bytes()] == [], path
    done = traceprof(tmp_path, "recover", folder)
    assert done.returncode == 0, done.stderr
    recovered = (tmp_path / "run.sqlite").read_bytes()
    assert [one for one in secrets | {b"envsecret77"} if one in recovered] == []
    assert n_work(tmp_path / "run.sqlite") == 4
    assert [one for one in secrets if one in (done.stdout + done.stderr).encode()] == []


def test_all_artefacts_of_a_recording_are_gone_in_the_end(tmp_path):
    command = [sys.executable, "-m", "traceprof", "record", "-o", "run.sqlite", "--with", "torch"]
    environment = environment_of_test(TMPDIR=str(tmp_path))
    done = finished([*command, "--", *NAMED_STEPS, "0"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in Path(tmp_path).iterdir()] == ["run.sqlite"]
