"""What a typed program that reads traces looks like: mypy checks it, and a test runs it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import pandas as pd

import traceprof as tp


def idle_share(path: str | Path, window: str | None = None) -> float:
    """Return the share of the time of all devices in which they were idle."""
    run = tp.open(path, align="utc", warmup=1)
    assert_type(run, tp.Run)
    assert_type(run.within(window), tp.Run)
    result = run.within(window).breakdown()
    assert_type(result, tp.Result)
    total = result.to_frame("total")
    assert_type(total, pd.DataFrame)
    return float(total["idle_ns"].iloc[0] / total["duration_ns"].iloc[0])


def slow_steps(paths: list[Path]) -> list[str]:
    """Return what is said of the steps of a run."""
    steps = tp.open(paths, step_ranges=r"step (\d+)|traceprof.step|user_step").result("steps")
    assert_type(steps.sentences, list[str])
    return steps.sentences
