"""Every door gives the same answer: each figure of each trace, and what must hold of all.

`python -m tests.truth.doors` prints the same as a table, with what every door shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.requirements import TRACES, require
from tests.truth.door_asking import Asker, asking
from tests.truth.door_exhibits import from_text
from tests.truth.door_invariants import INVARIANTS
from tests.truth.door_reading import Shown
from tests.truth.door_timeline import timeline_of
from tests.truth.doors import DOORS, answers_of, disagreements, traces
from traceprof.render.timeline.render import render_timeline

WORKERS = 2


def _cases() -> Iterator[object]:
    for place, (name, path) in enumerate(traces().items()):
        marks = [pytest.mark.xdist_group(f"doors {place % WORKERS}")]
        if path.is_relative_to(TRACES):
            marks.append(pytest.mark.traces)
        yield pytest.param(path, id=name, marks=marks)


@pytest.fixture(scope="module", params=_cases())
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asker]:
    """Return who asks about a trace; it is opened once for all tests of it."""
    path: Path = request.param
    if path.is_relative_to(TRACES):
        require("traces")
    yield Asker(path, tmp_path_factory.mktemp("doors"))


@pytest.fixture
def asker(opened: Asker) -> Iterator[Asker]:
    """Return the same while it may ask: other tests have no cache and no database of runs."""
    with asking(opened):
        yield opened


def test_all_doors_show_the_same(asker: Asker) -> None:
    found = disagreements(asker)
    assert not found, "\n".join(found)


def test_what_must_hold_of_every_trace_holds(asker: Asker) -> None:
    found = [f"{name}: {text}" for name, check in INVARIANTS.items() for text in check(asker)]
    assert not found, "\n".join(found)


SILENT = (
    *("show flops", "show kernels --json", "show path --json", "show copies --json"),
    *("show breakdown --by phase --json", "show steps --by phase --json", "show flops --json"),
    *("show flops --by step", "show flops --by step --json", "report: mfu", "explain T"),
    "report: ranks",
)
"""Doors that show no figure of the README's trace: it has no FLOPs, no slow step, and one rank, and
these tables say nothing of the steps that they are about."""


def test_every_door_shows_some_figure_of_the_trace_of_the_readme(tmp_path: Path) -> None:
    """A pattern that finds nothing any more would agree with everything."""
    asker = Asker(traces()["fixtures/h100-cnn.sqlite.gz"], tmp_path)
    with asking(asker):
        seen = {answer.door for answer in answers_of(asker) if answer.readings}
    silent = {door.name for door in DOORS} - seen
    assert {name.removesuffix(" -w steady") for name in silent} == set(SILENT)


@pytest.mark.parametrize(
    ("first", "second", "agrees"),
    [
        ("23.08 ms", "23.08 ms", True),
        ("23.08 ms", "23.09 ms", False),
        ("23.08 ms", "23.1 ms", True),
        ("23.08 ms", "23.2 ms", False),
        ("999.8 µs", "1.000 ms", True),
        ("96.7 %", "96.7%", True),
        ("96.7 %", "96.8 %", False),
        ("2 774.6", "2,774.6 /s", True),
        ("8 9 10", "8 9 11", False),
    ],
)
def test_figures_agree_to_the_digits_that_both_print(
    first: str, second: str, *, agrees: bool
) -> None:
    assert Shown.of(first).agrees(Shown.of(second)) is agrees


def test_cells_of_a_printed_table_are_where_their_headings_are() -> None:
    text = "cause         total  share %\n" + "─" * 28 + "\nhost code  12.00 ms    7.3 %\n"
    text += "           1.000 ms    0.6 %\nnote: 3  4  5"
    rows = from_text(text, {"idle": ("cause", "total")}).tables["idle"]
    assert [row["cause"] for row in rows] == ["host code", ""]
    assert [row["share %"] for row in rows] == ["7.3 %", "0.6 %"]


def test_the_data_of_a_timeline_can_be_read() -> None:
    builder = TraceBuilder().kernel("k", 300_000, 400_001, launched_ns=(250_000, 260_000))
    builder.range("traceprof.window", 200_000, 500_077, domain="traceprof")
    for step in range(4):
        builder.range(f"step {step}", 200_000 * step, 200_000 * step + 150_001)
    found = timeline_of(render_timeline(builder.build(), title="t"))
    # The kernel ends in the gap after step 1: that one lasts until then, the next from then on.
    assert found.steps == {0: 200_000.0, 1: 200_001.0, 2: 199_999.0, 3: 150_001.0}
    ((starts, ends),) = [own for (_, state), own in found.states.items() if state == "not_recorded"]
    assert [starts.tolist(), ends.tolist()] == [[0, 500_077], [200_000, 750_001]]
