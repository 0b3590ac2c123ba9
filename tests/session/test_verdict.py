"""The bottleneck in a word or two."""

from __future__ import annotations

import pandas as pd
import pytest

from traceprof.analysis.idle.idle import ANALYSIS
from traceprof.model.results import Result
from traceprof.session.verdict import bound_by

PARTS = ("compute", "exposed_communication", "exposed_transfer", "device_memory", "idle")


def idle(**causes: int) -> dict[str, Result]:
    """Return the result of `idle` with so many ns of each cause."""
    table = pd.DataFrame({"cause": list(causes), "total_ns": list(causes.values())})
    return {"idle": Result("idle", ANALYSIS.spec, {"causes": table})}


@pytest.mark.parametrize(
    ("shares", "causes", "words"),
    [
        ((0.95, 0, 0, 0, 0.05), {"data": 1}, "GPU-bound"),
        ((0.7, 0, 0, 0, 0.3), {"data": 2, "launch": 1}, "GPU-bound, partly input-bound"),
        ((0.7, 0, 0, 0.15, 0.15), {"data": 1}, "GPU-bound"),
        ((0.7, 0.3, 0, 0, 0), {}, "GPU-bound, partly communication-bound"),
        ((0.6, 0, 0, 0, 0.4), {"unknown": 1}, "GPU-bound"),
        ((0.75, 0.09, 0.08, 0, 0.08), {"data": 1}, "GPU-bound"),
        ((0.1, 0.6, 0, 0, 0.3), {"data": 1}, "communication-bound"),
        (
            (0.07, 0.37, 0, 0, 0.56),
            {"launch": 36, "host": 10, "edge": 10},
            "communication-bound and launch-bound",
        ),
        (
            (0.1, 0, 0, 0, 0.9),
            {"edge": 50, "data": 40},
            "at work only part of the time and input-bound",
        ),
        ((0.1, 0, 0, 0, 0.9), {"data": 50, "unknown": 40}, "input-bound"),
        ((0.0, 0, 0.9, 0, 0.1), {}, "transfer-bound"),
    ],
)
def test_it_is_named_by_what_takes_most(
    shares: tuple[float, ...], causes: dict[str, int], words: str
) -> None:
    results = idle(**causes) if causes else {}
    assert bound_by(results, dict(zip(PARTS, shares, strict=True))) == words
