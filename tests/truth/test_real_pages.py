"""The page of every shared trace: one window, sums that add up, figures that are possible."""

from __future__ import annotations

import pytest

from tests.real_traces import ALL
from tests.truth.judged import document_of
from traceprof.model.activity import PARTS
from traceprof.render.registry import Options, render

pytestmark = pytest.mark.traces

ROUNDING = 1e-9
MOST_LINES = 46  # 44 before two lines on the cost of recording
"""At 110 columns; three findings whose titles do not fit a line take most."""
TRACES = [name for name in ALL if name != "nvprof/zero-kernels.sql"]  # that one has no time


@pytest.mark.parametrize("name", TRACES)
def test_the_parts_of_each_device_are_its_time(name: str) -> None:
    breakdown = document_of(name).results.get("breakdown")
    if breakdown is None or breakdown.table.to_frame().empty:
        return
    table = breakdown.to_frame("devices")
    parts = sum(table[f"{part}_ns"] for part in PARTS)
    assert (parts == table["duration_ns"]).all()
    assert (table["duration_ns"] <= document_of(name).selection.window.duration_ns).all()


@pytest.mark.parametrize("name", TRACES)
def test_idle_is_what_the_breakdown_says_by_cause(name: str) -> None:
    results = document_of(name).results
    if "idle" not in results or results["breakdown"].table.to_frame().empty:
        return
    causes = results["idle"].to_frame("causes").groupby("device")["total_ns"].sum()
    devices = results["breakdown"].to_frame("devices").set_index("device")["idle_ns"]
    for device, idle_ns in devices.items():
        assert causes.get(device, 0) == idle_ns


@pytest.mark.parametrize("name", TRACES)
def test_no_share_is_more_than_all(name: str) -> None:
    for result in document_of(name).results.values():
        for table in result.spec.tables:
            frame = result.to_frame(table.name)
            for column in ("share_ratio", "claimed_ratio", "saving_ratio", "idle_ratio"):
                if column in frame:
                    assert (frame[column].dropna() <= 1 + ROUNDING).all(), (result.name, column)


@pytest.mark.parametrize("name", TRACES)
def test_the_page_fits_a_screen(name: str) -> None:
    text = render("text", document_of(name), Options(width=110))
    page, _, _ = text.partition("\nNext ")  # as long as the path to the trace is
    assert len(page.splitlines()) < MOST_LINES
