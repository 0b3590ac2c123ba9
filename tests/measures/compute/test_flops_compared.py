"""FLOPs of operators: by hand, as torch's own counter counts them, and as the docs print them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scripts.flops_compared import CASES, UNKNOWN, by_hand, by_traceprof, rows_of_page, text_of
from tests.requirements import require
from traceprof.measures.compute.operators import OPERATORS

TORCH = """
import json, torch
from torch.utils.flop_counter import flop_registry
from scripts.flops_compared import CASES, by_torch
print(json.dumps([[str(name) for name in flop_registry], [by_torch(case) for case in CASES]]))
"""
EXACT = ("causal", "window")
"""Words of inputs whose mask torch's counter does not see."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.words}")
def test_flops_are_those_by_hand(case: object) -> None:
    assert by_traceprof(case) == by_hand(case)  # type: ignore[arg-type]


def test_the_docs_have_the_numbers_of_today() -> None:
    rows = rows_of_page()
    assert len(rows) == len(CASES)
    for row, case in zip(rows, CASES, strict=True):
        assert row[0] == f"`{case.name}`"
        assert (row[2], row[5]) == (text_of(by_hand(case)), text_of(by_traceprof(case)))


@pytest.mark.torch
def test_every_operator_of_torchs_counter_has_its_flops() -> None:
    require("torch")
    done = subprocess.run(
        [sys.executable, "-c", TORCH], check=True, capture_output=True, text=True, cwd="."
    )
    names, counts = json.loads(done.stdout)
    of_aten = {name.replace("aten.", "aten::") for name in names if name.startswith("aten.")}
    assert len(of_aten) >= 20
    assert of_aten <= OPERATORS.keys()
    assert of_aten <= {case.name for case in CASES}
    for case, row, count in zip(CASES, rows_of_page(), counts, strict=True):
        assert row[3] == text_of(count)
        if count is not None and not any(word in case.words for word in EXACT):
            assert count == by_hand(case), case
    assert sum(row[3] != UNKNOWN for row in rows_of_page()) >= 20
