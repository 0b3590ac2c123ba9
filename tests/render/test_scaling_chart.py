"""Scaling drawn: charts without scripts, text without color."""

from __future__ import annotations

import re

from tests.comparison.scaling.sized_runs import MS, sized
from traceprof.comparison import Comparison
from traceprof.comparison.scaling.compared import scaling
from traceprof.render.charts.curves import scaling_charts
from traceprof.render.registry import Options, render

BASE = {"compute": 90 * MS, "host": 10 * MS}
LESS = {"compute": 100 * MS, "communication": 50 * MS, "stragglers": 40 * MS, "host": 10 * MS}


def lossy(name: str = "") -> Comparison:
    labels = {"network": name}
    return scaling(
        [
            sized(1, batch=32, parts=BASE, labels=labels),
            sized(2, batch=64, parts=LESS, labels=labels),
            sized(2, batch=64, parts=BASE, labels={"network": "ideal"}),
            sized(1, batch=32, parts=BASE, labels={"network": "ideal"}),
        ]
    )


def test_every_size_of_every_group_is_a_point() -> None:
    chart = scaling_charts(lossy("slow").results["scaling"])
    assert chart.count("<circle") == 4
    assert "slow, 2: 50.0% of ideal" in chart
    assert "ideal, 2: 100.0% of ideal" in chart


def test_efficiency_has_a_chart_of_its_own() -> None:
    chart = scaling_charts(lossy("slow").results["scaling"])
    (efficiency,) = re.findall(r"<svg[^>]*Efficiency by job size.*?</svg>", chart, re.S)
    shares = re.findall(r">([\d.]+%)</text>", efficiency)
    assert {"50.0%", "100.0%"} <= set(shares)
    assert efficiency.count("<polyline") == 2


def test_losses_are_bars_up_to_ideal() -> None:
    chart = scaling_charts(lossy("slow").results["scaling"])
    bars = re.findall(r'<rect x="([\d.]+)%" y="0" width="([\d.]+)%".*?<title>([^<]*)<', chart)
    own = [(float(x), float(width), words) for x, width, words in bars if words.startswith("2: ")]
    slow = next(i for i, (_, _, words) in enumerate(own) if "reached 50.0%" in words)
    shown = own[slow : slow + 4]
    assert [words for _, _, words in shown] == [
        "2: reached 50.0%",
        "2: exposed communication 25.0%",
        "2: waiting for stragglers 20.0%",
        "2: slower compute 5.0%",
    ]
    assert [x for x, _, _ in shown] == [0, 50, 75, 95]


def test_names_from_outside_are_escaped() -> None:
    page = render("html", lossy("<b>&"), Options())
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page


def test_one_size_is_no_chart() -> None:
    assert scaling_charts(scaling([sized(4, 100)]).results["scaling"]) == ""


def test_text_adds_up_what_was_lost() -> None:
    lines = render("text", lossy("slow"), Options(width=80, rows=40)).splitlines()
    assert max(map(len, lines)) <= 80
    start = lines.index("slow")
    words = [line.split() for line in lines[start:]]
    lost = {" ".join(line[:-1]): line[-1] for line in words if line and line[-1].endswith("%")}
    assert lost["exposed communication"] == "25.0%"
    assert lost["waiting for stragglers"] == "20.0%"
    assert lost["slower compute"] == "5.0%"
    assert lost["total lost"] == "50.0%"
