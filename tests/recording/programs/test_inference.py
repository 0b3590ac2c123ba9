"""A program without steps is recorded in windows by time, from its second pass on."""

import json
import sys

import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require

pytestmark = [pytest.mark.torch]


def test_a_short_program_without_steps_has_its_operators(tmp_path):
    require("torch")
    command = [sys.executable, str(PROGRAMS / "inference.py")]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch")
    assert recorded.done.returncode == 0, recorded.done.stderr
    told = json.loads(recorded.done.stdout.removeprefix("truth "))
    trace = recorded.trace
    assert (trace.ranges["name"] == "eval").sum() == told["requests"]
    # All but those of the first pass, which is before the window.
    assert (trace.host_ops["name"] == "aten::linear").sum() == told["linears"] - 2
