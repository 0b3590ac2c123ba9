"""A recorded program ends as quietly as one that is not, whatever it leaves behind."""

import sys

import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require

pytestmark = [pytest.mark.torch]

KEPT = ["__main__|steps$", "__main__|gradients$", "__main__|_traceprof_runtime"]


@pytest.mark.parametrize("how", ["optimizer", "by-hand"])
@pytest.mark.parametrize("kept", KEPT)
def test_what_outlives_the_modules_of_the_hooks_says_nothing(tmp_path, kept, how):
    require("torch")
    command = [sys.executable, str(PROGRAMS / "outliving.py"), kept, how]
    # What torch has to say of the machine, of a driver that is too old for it say, is not meant.
    quiet = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch", "--layers", "2", **quiet)
    assert recorded.done.returncode == 0
    assert recorded.done.stdout == 'truth {"steps": 6}\n'
    said = [line for line in recorded.done.stderr.splitlines() if "traceprof: " not in line]
    assert not said
    assert (recorded.trace.ranges["name"] == "backward").sum() == 6
