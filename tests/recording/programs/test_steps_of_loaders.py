"""Where each batch is a step, there are as many as the program has worked on."""

import json
import sys

import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require
from traceprof.measures.steps.find import find_steps

pytestmark = [pytest.mark.torch]


@pytest.mark.parametrize("how", ["break", "forward"])
def test_batches_are_those_that_were_worked_on(tmp_path, how):
    require("torch")
    command = [sys.executable, str(PROGRAMS / "twelve_batches.py"), how]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch", "--step-from", "loader")
    told = json.loads(recorded.done.stdout.removeprefix("truth "))
    assert len(find_steps(recorded.trace)) == told["steps"] == 12


def test_what_is_advised_is_how_many_steps_that_makes(tmp_path):
    require("torch")
    command = [sys.executable, str(PROGRAMS / "twelve_batches.py"), "forward"]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch")
    assert "--step-from every-forward (12) or loader (12)" in recorded.done.stderr
