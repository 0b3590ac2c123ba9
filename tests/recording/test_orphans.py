"""Programs that a profiler left behind when it ended."""

import signal
import subprocess

import pytest

from traceprof.recording.orphans import wait_for_program
from traceprof.recording.program import Program

# A launcher that, as that of nsys, says 1 of whatever is no success, and its program.
LAUNCHER = "sh -c 'trap \"exit 1\" TERM; echo $$; while :; do :; done'; exit 1"


@pytest.mark.parametrize(("has_said", "code"), [(True, 1), (False, 128 + signal.SIGTERM)])
def test_a_signal_that_a_profiler_kept_is_sent_and_an_end_in_order_is_no_kill(
    tmp_path, has_said, code
):
    with subprocess.Popen(["sh", "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        if has_said:
            (tmp_path / f"end.{pid}.json").write_text("{}")
        program = Program(n_interrupts=2, was_profiler_signaled=True)
        assert wait_for_program(pid, launcher.pid, program, tmp_path) == code


def test_a_program_that_ends_before_it_is_waited_for_has_the_code_that_its_launcher_saw(tmp_path):
    """Another launcher, of an attempt that failed, has become our child, too."""
    command = ["sh", "-c", "sh -c 'echo $$; exit 3'; code=$?; echo over; exit $code"]
    with (
        subprocess.Popen(["sh", "-c", "exit 5"]),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher,
    ):
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        assert launcher.stdout.readline() == "over\n"
        assert wait_for_program(pid, launcher.pid, Program(), tmp_path) == 3
