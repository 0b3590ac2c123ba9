"""Exit codes of programs that were told to stop."""

import os
import subprocess
import sys

import pytest

from tests.requirements import ROOT

# The program tells its recorder to stop, is told in turn, and ends well all the same; if it is
# not told it gives up after counting far.
HANDLES_IT = (
    'trap "exit 0" %s; kill -%s $PPID; i=0; while [ $i -lt 3000000 ]; do i=$((i+1)); done; exit 1'
)
RECORD = (
    "import os, sys; from traceprof.recording.program import run_recorded; "
    "sys.exit(run_recorded(['sh', '-c', sys.argv[1]], os.environ, is_profiler={}))"
)


@pytest.mark.parametrize(("signal", "number"), [("TERM", 15), ("INT", 2)])
def test_a_program_may_end_well_after_a_signal_a_profiler_may_not(signal, number):
    codes = [
        subprocess.run(
            [sys.executable, "-c", RECORD.format(is_profiler), HANDLES_IT % (signal, signal)],
            cwd=ROOT,
            env=os.environ,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        ).returncode
        for is_profiler in (False, True)
    ]
    assert codes == [0, 128 + number]
