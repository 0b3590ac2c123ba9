"""The pace of logs as a curve, with lasting changes marked."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.logs.reading import one_run
from traceprof.model.summary import Summary
from traceprof.render.charts.curves import pace_chart


def log(tmp_path: Path, step_ms: Callable[[int], float], n: int = 40) -> Summary:
    return one_run(
        tmp_path,
        "".join(
            f" iteration {i:8d}/ 500 | consumed samples: {i * 32:12d} | elapsed time per iteration "
            f"(ms): {step_ms(i):.1f} | global batch size: 32 | lm loss: 2.0E+00 |\n"
            for i in range(1, n + 1)
        ),
    )


def test_a_lasting_change_is_marked_where_it_is(tmp_path: Path) -> None:
    drawn = pace_chart([log(tmp_path, lambda i: 1000 if i <= 20 else 1500)])
    (at,) = re.findall(r'class="change"[^>]*x1="([\d.]+)"', drawn)
    (line,) = re.findall(r'<polyline points="([^"]*)"', drawn)
    places = [float(point.partition(",")[0]) for point in line.split()]
    assert float(at) in places
    after = len(places) - places.index(float(at)) - 1
    assert after == 20
    assert "step_period_ns changes after step 20: 1.00 s before, 1.50 s later" in drawn


def test_a_steady_pace_has_no_mark(tmp_path: Path) -> None:
    drawn = pace_chart([log(tmp_path, lambda i: 1000 + i % 3)])
    assert "<polyline" in drawn
    assert "change" not in drawn


def test_two_logs_are_two_curves_and_a_short_one_is_none(tmp_path: Path) -> None:
    long, short = log(tmp_path, lambda _: 1000), log(tmp_path, lambda _: 1000, n=2)
    assert pace_chart([long, long]).count("<polyline") == 2
    assert pace_chart([short]) == ""
    assert pace_chart([long, short]) == ""
