"""Answers in a terminal: the page, advice, bars of parts, lines of blocks."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.render.documents import document_of_results, measured
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, key, same
from traceprof.model.trace import TraceInfo
from traceprof.render.registry import Options, render
from traceprof.render.text.page import sparkline, stacked_bar
from traceprof.session.answer import Document
from traceprof.session.verdict import Verdict


def test_heights_are_in_proportion_to_the_largest() -> None:
    assert sparkline([1, 2, 4, 8], 10) == "▁▂▄█"
    assert sparkline([5, 5], 10) == "██"


def test_a_slow_one_among_many_is_still_seen() -> None:
    values = [1.0] * 1000
    values[503] = 8.0
    line = sparkline(values, 20)
    assert len(line) == 20
    assert line[10] == "█"
    assert set(line[:10] + line[11:]) == {"▁"}


def test_nothing_and_zeros() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([0, 0], 10) == "▁▁"


FINDINGS = ResultSpec(
    (
        TableSpec(
            "findings",
            "one row per finding",
            (
                key("rule", "which rule"),
                same("title", Unit.TEXT, "what it is"),
                same("kind", Unit.TEXT, "how sure the saving is"),
                same("saving_ratio", Unit.RATIO, "how much of the time it costs"),
                same("saving_ns", Unit.NS, "the same per step"),
                same("base", Unit.TEXT, "of what that is a part"),
                same("base_ns", Unit.NS, "how long that is"),
                same("evidence", Unit.TEXT, "what shows it"),
                same("action", Unit.TEXT, "what to do"),
                same("caveat", Unit.TEXT, "when not to"),
                same("window", Unit.TEXT, "the worst place"),
            ),
        ),
    )
)


def findings(n: int) -> Result:
    rows = [
        {
            "rule": f"rule{i}",
            "title": Note.of("launch-bound: {n:count} launches", n=12_345 + i),
            "kind": "measured" if i == 0 else "none",
            "saving_ratio": 0.25 if i == 0 else 0.0,
            "saving_ns": 2_500_000,
            "base": "a step",
            "base_ns": 10_000_000,
            "evidence": (Note.of("{n:ns} of each step", n=7), "queues are empty"),
            "action": "use CUDA graphs",
            "caveat": "shapes change",
            "window": "",
        }
        for i in range(n)
    ]
    return Result("findings", FINDINGS, {"findings": FINDINGS.tables[0].of_rows(rows)})


def devices(n: int) -> Document:
    builder = TraceBuilder()
    for device in range(n):
        builder.kernel("gemm", 0, 600, device=device)
        builder.kernel("ncclAllReduce", 500, 700, device=device, stream=9)
    return measured(builder.build(span=(0, 1_000)), ["breakdown", "kernels"], "all")


def test_advice_is_numbered_and_says_when_not_to() -> None:
    trace = TraceBuilder().kernel("k", 0, 10).build()
    lines = render("text", document_of_results(trace, {"findings": findings(2)})).splitlines()
    assert lines[-9:] == [
        "1. launch-bound: 12,345 launches",
        "   Saves       2.50 ms of 10.0 ms per step (25.0%, measured)",
        "   Evidence    7 ns of each step; queues are empty",
        "   Fix         use CUDA graphs",
        "   Caveat      shapes change",
        "2. launch-bound: 12,346 launches",
        "   Evidence    7 ns of each step; queues are empty",
        "   Fix         use CUDA graphs",
        "   Caveat      shapes change",
    ]


def test_the_page_opens_with_the_verdict_the_steps_and_the_best_advice() -> None:
    builder = TraceBuilder()
    for number in range(4):
        t = number * 1_000
        builder.step(t, t + 1_000, number).kernel("gemm", t, t + 600)
    builder.range("mine", 0, 100)
    told = measured(builder.build(), ["steps", "breakdown", "kernels", "ranges"])
    told = replace(
        told,
        results={"findings": findings(5), **told.results},
        verdict=Verdict(
            bound_by="input-bound",
            sentences=(Note.of("A step of {ns:ns}.", ns=1_000),),
            fine=("communication", "copies"),
            fine_seen=(
                Note.of("{n:count} kernels", n=4),
                Note.of("communication"),
                Note.of("copies {share:ratio}", share=0.02),
            ),
            unknown=(Note.of("{what}: not recorded", what="ranks"),),
            once=(Note.of("warm-up {ns:ns}", ns=3_000),),
            next_command="traceprof show steps TRACE",
            has_steps=True,
        ),
        info=TraceInfo(path="/tmp/my trace.sqlite"),
    )
    text = render("text", told, Options(rows=5))
    # One empty line between two blocks: none before the first, none for a block without lines.
    assert not text.startswith("\n")
    assert "\n\n\n" not in text
    places = [text.index(one) for one in ("A step of 1.00 µs.", "Steps       0–3  ████", "1. ")]
    assert places == sorted(places)
    assert "Bottleneck  Input-bound. A step of" in text
    assert "3. launch-bound" in text
    assert "4. launch-bound" not in text
    assert "2 more findings: traceprof findings '/tmp/my trace.sqlite'" in text
    assert "GPU time by kernel name" not in text
    assert text.splitlines()[-5:] == [
        "One-time    warm-up 3.00 µs",
        "No problem  2 checks (4 kernels): communication, copies 2.0%. Shares (from 1%)",
        "            are of the analyzed time",
        "Not checked ranks: not recorded",
        "Next        traceprof show steps '/tmp/my trace.sqlite'",
    ]
    full = render("text", told, Options(rows=5, is_full=True))
    assert full.startswith(text.rstrip())
    assert "GPU time by kernel name" in full
    assert "ranges" not in full


@pytest.mark.parametrize("n", [1, 3])
def test_a_device_of_which_nothing_was_recorded_has_no_shares(n: int) -> None:
    told = devices(n)
    own = told.results["breakdown"]
    names = [*own.tables["devices"].to_frame()]
    columns = dict.fromkeys((name for name in names if name.endswith("_ns")), 0)
    columns |= dict.fromkeys((name for name in names if name.endswith("_ratio")), np.nan)
    tables = {name: table.assign(**columns) for name, table in own.tables.items()}
    nothing = replace(told, results={"breakdown": replace(own, tables=tables)})
    text = render("text", nothing)
    assert "██" not in text
    assert re.search(r"– compute" if n > 1 else r"compute +–", text)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_devices_are_shown_in_full_many_in_a_line_each(n: int) -> None:
    text = render("text", devices(n))
    assert text.count("GPU-Util 70.0%") == (1 if n == 1 else n + 1 if n == 2 else 1)
    assert text.count("50.0% of communication overlapped") == text.count("GPU-Util")
    assert ("mean of" in text) == (n > 1)
    assert text.count("60.0% compute") == (n if n > 2 else 0)
    assert (n > 2) or re.search(r"▓ exposed communication +100 ns +10\.0%", text)


def test_where_nothing_worked_the_page_says_so() -> None:
    trace = TraceBuilder().range("a", 0, 10).build(recorded={"kernels", "copies", "ranges"})
    text = render("text", measured(trace, ["breakdown", "kernels"], "all"))
    assert "note: GPU activity was recorded, but the trace contains none." in text
    assert "by kernel name" not in text


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("tiny", [0.0004, 0.002])
def test_the_legend_shows_each_sign_of_the_bar(width: int, tiny: float) -> None:
    """A part that would be printed as 0.0% is in neither."""
    names = ("exposed_communication", "exposed_transfer", "device_memory", "idle")
    parts = dict(zip(names, (0.2, 0.01, tiny, 0.1), strict=True))
    parts["compute"] = 1 - sum(parts.values())
    bar, *legend = [line.plain for line in stacked_bar(parts, width, {})]
    entries = [entry for line in legend for entry in re.split(r"\s{2,}", line.strip())]
    assert {*bar.strip()} == {entry[0] for entry in entries}
    assert ("▪ device memory 0.2%" in entries) is (tiny == 0.002)
    assert not any(entry.endswith(" 0.0%") for entry in entries)
    assert all(len(line.rstrip()) <= width for line in (bar, *legend))
