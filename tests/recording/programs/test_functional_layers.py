"""The backward pass of functions in a block is the block's, not that of a layer beside them."""

import json
import sys

import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require

pytestmark = [pytest.mark.torch]


def test_each_block_has_the_backward_pass_of_its_functions(tmp_path):
    require("torch")
    command = [sys.executable, str(PROGRAMS / "functional_layers.py")]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch", "--layers", "2")
    told = json.loads(recorded.done.stdout.removeprefix("truth "))
    ranges, found = recorded.trace.ranges, {}
    for name, start, end in zip(
        *(ranges[one] for one in ("name", "start_ns", "end_ns")), strict=True
    ):
        if name.startswith("layer.backward:"):
            path = name.removeprefix("layer.backward:").partition(":")[0]
            found[path] = found.get(path, 0) + end - start
    for block in ("1", "2"):
        assert found[block] == pytest.approx(1e9 * told[block], rel=0.02)
    leaves = {path: ns for path, ns in found.items() if path not in ("1", "2")}
    assert set(leaves) == {"0", "1.first", "1.second", "2.first", "2.second"}
    assert max(leaves.values()) < 0.05 * 1e9 * min(told.values())
