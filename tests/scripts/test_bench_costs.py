"""scripts/bench_costs: the table of what recording costs."""

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from tests.requirements import ROOT, require

SCRIPT = ROOT / "scripts" / "bench_costs"
ROW = re.compile(r"\| (.+) \| (-?[\d.]+) \| (-?[\d.]+) … (-?[\d.]+) \|")


def measured(*arguments):
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return {what: list(map(float, figures)) for what, *figures in ROW.findall(done.stdout)}


def test_a_row_has_the_median_the_least_and_the_most():
    loader = SourceFileLoader("bench_costs", str(SCRIPT))
    module = module_from_spec(spec_from_loader("bench_costs", loader))
    loader.exec_module(module)
    lines = module.table({"a mark": [3, 1, 2.04], "a range": [-0.5]}).splitlines()
    assert lines[2:] == ["| a mark | 2.0 | 1.0 … 3.0 |", "| a range | -0.5 | -0.5 … -0.5 |"]


def test_the_start_of_any_python_is_measured():
    ((median, least, most),) = measured("--only", "start", "--rounds", "3").values()
    assert least <= median <= most < 60e6


@pytest.mark.torch
def test_everything_that_the_hooks_do_is_measured():
    require("torch")
    found = measured("--only", "hooks", "--rounds", "1")
    assert len(found) == 6
    for what, (median, _least, _most) in found.items():
        assert median > 0 or "step" in what or "collective" in what  # differences of two figures
