"""What a page says that a change saves, and what it really saved on an H100.

Programs, step times without a profiler and what each change saved: ../shared/gpu/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import require
from traceprof.model.results import Result
from traceprof.session.run import open_run

pytestmark = pytest.mark.traces

MS = 1e6
NEAR = 0.2

# Recording, the finding whose advice was followed, and what a step took less, in ms.
CHANGES = [
    ("cnn-embedded.sqlite.gz", "layout_conversion", 23.05 - 13.70),
    ("item-embedded.sqlite.gz", "precision", 65.9 - 14.61),
    ("gpt-embedded.sqlite.gz", "fusable_kernels", 11.62 - 8.21),
]


@cache
def findings_of(name: str) -> Result:
    return open_run([Path(require("traces")) / "h100" / name]).result("findings")


def finding(name: str, rule: str) -> Mapping[str, Any]:
    (row,) = [row for row in findings_of(name).table.rows() if row["rule"] == rule]
    return row


@pytest.mark.parametrize(("name", "rule", "saved_ms"), CHANGES)
def test_what_a_page_says_that_a_change_saves_it_saved(
    name: str, rule: str, saved_ms: float
) -> None:
    own = finding(name, rule)
    assert own["saving_ns"] == pytest.approx(saved_ms * MS, rel=NEAR)
    assert own["kind"] == "estimated"
    assert own["min_saving_ns"] <= saved_ms * MS <= own["max_saving_ns"]


def test_a_fused_optimizer_and_no_reading_of_the_loss() -> None:
    name = "item-embedded.sqlite.gz"
    losses = findings_of(name).tables["losses"]
    step_ns, analyzed_ns = (findings_of(name).scalars[key] for key in ("step_ns", "analyzed_ns"))
    waits = losses["total_ns"][losses["loss"] == "synchronizing"].sum()
    said = finding(name, "looped_optimizer")["saving_ns"] + waits / analyzed_ns * step_ns
    assert said == pytest.approx((14.61 - 11.62) * MS, rel=NEAR)


def test_tf32_is_advice_for_gemms_only() -> None:
    assert "TF32" in finding("item-embedded.sqlite.gz", "precision")["action"]
