"""Time to a target is counted from the first step, as the program counts it."""

import json
import sys

import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require
from traceprof.comparison.accuracy import accuracy
from traceprof.comparison.summary.summarize import summarize
from traceprof.session.run import open_run

pytestmark = [pytest.mark.torch]


def test_set_up_is_not_on_the_way_to_the_target(tmp_path):
    require("torch")
    command = [sys.executable, str(PROGRAMS / "reaches_target.py")]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch")
    told = json.loads(recorded.done.stdout.removeprefix("truth "))
    run = summarize(open_run([recorded.path]))
    (row,) = accuracy([run], target=told["target"]).results["accuracy"].tables["reached"].rows()
    assert row["time_ns"] == pytest.approx(1e9 * told["reached_s"], rel=0.02)
