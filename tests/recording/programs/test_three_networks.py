"""Forward and backward pass of each layer, as the program times them; the rest is a row."""

import json
import sys

import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require
from tests.running import run
from traceprof.measures.host.layers import OUTSIDE
from traceprof.measures.host.states import find_host_phases
from traceprof.model.ranks import Ranks

pytestmark = [pytest.mark.torch]


@pytest.mark.parametrize("network", ["functional", "reused", "two_levels"])
def test_layers_take_as_long_as_the_program_says(tmp_path, network):
    require("torch")
    command = [sys.executable, str(PROGRAMS / "three_networks.py"), network]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch", "--layers", "2")
    told = json.loads(recorded.done.stdout.removeprefix("truth "))
    table = run("layers", Ranks.of(recorded.trace)).table
    found = {row["layer"]: row for row in table.rows()}
    outside, between = found.pop(OUTSIDE), told.pop("between", [0, 0])
    assert set(found) == set(told)
    for path, times in told.items():
        both = found[path]["host_ns"], found[path]["host_backward_ns"]
        assert both == pytest.approx([1e9 * seconds for seconds in times], rel=0.03), path
    # Functions between the layers are outside of them, and all rows add up to the backward passes.
    assert outside["host_backward_ns"] >= 1e9 * between[1]
    top = [row for path, row in found.items() if "inner" not in path]
    (host,) = find_host_phases(recorded.trace)
    total_ns = sum(row["host_backward_ns"] for row in (*top, outside))
    assert total_ns == pytest.approx(host.times["backward"].total_ns, rel=1e-6)
