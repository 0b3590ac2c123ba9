"""What a recording lost is in its trace, and every output says it."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.recording.conftest import NAMED_STEPS, environment_of_test, on_small_disk, record
from traceprof.cli import app

STEPS = "import os, sys, traceprof\nfor _ in range(10):\n    with traceprof.step(): pass\n"
KILLED = f"{STEPS}os.kill(os.getpid(), 9)\n"
LOST = "lost 10 of 10 events: the process was killed, or ended without Python's exit handlers"
# Ways to end a program that skip everything that runs at exit, and the exit status of each
SUDDEN_ENDS = {
    "os._exit(4)": 4,
    "os.abort()": 128 + 6,
    "os.execvp('true', ['true'])": 0,
    "os.execve('/bin/sh', ['sh', '-c', 'exit 5'], os.environ)": 5,
    "os.fork() or os._exit(0); os.wait(); os._exit(6)": 6,
}


@pytest.fixture(scope="module")
def lost_all(tmp_path_factory):
    path = tmp_path_factory.mktemp("lost") / "run.sqlite"
    command = [sys.executable, "-c", KILLED]
    return record(path, command, "--with", "torch", TRACEPROF_FLUSH_S="1000")


@pytest.mark.parametrize(("end", "status"), SUDDEN_ENDS.items())
def test_a_program_that_skips_its_exit_handlers_loses_nothing(tmp_path, end, status):
    command = [sys.executable, "-c", STEPS + end]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch", TRACEPROF_FLUSH_S="1000")
    assert recorded.done.returncode == status
    assert recorded.trace.info.warnings == ()
    assert (recorded.trace.ranges.to_frame()["name"] == "user_step").sum() == 10


def test_a_killed_program_says_what_it_lost(lost_all):
    assert lost_all.done.returncode == 128 + 9
    assert LOST in lost_all.done.stderr
    assert "recorded 0 ranges" in lost_all.done.stderr
    (warning,) = lost_all.trace.info.warnings
    assert warning.endswith(LOST)


@pytest.mark.parametrize(
    "command",
    [
        *(("show", "quality"), ("show", "steps"), ("analyze",), ("info",)),
        *(("show", "steps", "--json"), ("query", "select * from ranges")),
    ],
)
def test_every_output_says_it(lost_all, command):
    words = list(command)
    words.insert(1 if command[0] != "show" else 2, str(lost_all.path))
    printed = CliRunner(env={"COLUMNS": "160"}).invoke(app, words)
    assert "lost 10 of 10 events" in " ".join(printed.output.split())


def test_a_disk_that_becomes_full(tmp_path):
    disk = tmp_path / "disk"
    recorded = record(
        tmp_path / "run.sqlite",
        [*NAMED_STEPS, "many"],
        *("--with", "torch"),
        prefix=on_small_disk(disk, "64k"),
        TMPDIR=str(disk),
    )
    assert recorded.done.returncode == 0
    (warning,) = recorded.trace.info.warnings
    n_kept = sum(map(len, (recorded.trace.ranges, recorded.trace.marks)))
    n_made = 3 * 4 + 1 + 1 + 1500
    assert f"lost {n_made - n_kept:,} of {n_made:,} events: the disk of the work folder" in warning
    assert warning in recorded.done.stderr


def test_a_disk_that_is_full_before_the_first_event(tmp_path):
    disk = tmp_path / "disk"
    fill = ["sh", "-c", 'cat /dev/zero > "$TMPDIR/fill"; exec "$@"', "sh"]
    recorded = record(
        tmp_path / "run.sqlite",
        [*fill, *NAMED_STEPS, "late"],
        *("--with", "torch"),
        prefix=on_small_disk(disk, "64k"),
        TMPDIR=str(disk),
    )
    assert recorded.done.returncode == 3
    assert "no process imported torch" not in recorded.done.stderr
    assert "could not write its record" in recorded.done.stderr
    assert any("could not write its record" in one for one in recorded.trace.info.warnings)


def test_a_program_that_replaces_itself_loses_nothing(tmp_path):
    code = (
        "import os, sys, traceprof\n"
        "for _ in range(5):\n"
        "    with traceprof.step(): pass\n"
        "if len(sys.argv) < 2:\n"
        "    os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
    )
    (tmp_path / "again.py").write_text(code)
    command = [sys.executable, str(tmp_path / "again.py")]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch")
    assert recorded.done.returncode == 0
    assert "lost" not in recorded.done.stderr
    assert "killed" not in recorded.done.stderr
    assert recorded.trace.info.warnings == ()
    assert (recorded.trace.ranges.to_frame()["name"] == "user_step").sum() == 10


def test_what_is_recovered_says_it(tmp_path):
    code = f"{STEPS}os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)"
    environment = environment_of_test(TMPDIR=str(tmp_path), TRACEPROF_FLUSH_S="1000")
    command = [sys.executable, "-m", "traceprof", "record", "-o", "run.sqlite", "--with", "torch"]
    whole = [*command, "--", sys.executable, "-c", code]
    subprocess.run(whole, cwd=tmp_path, env=environment, check=False)
    (folder,) = tmp_path.glob("traceprof-*")
    recover = [sys.executable, "-m", "traceprof", "recover", str(folder)]
    done = subprocess.run(
        recover, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "lost 10 of 10 events" in done.stderr
    assert "recorded 0 ranges" in done.stderr
