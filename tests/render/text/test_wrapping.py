"""Lines are broken between words, never within a number or between it and its unit."""

import re
from itertools import pairwise

import pytest
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.render.registry import Options
from traceprof.render.text.page import findings_in_brief, findings_view
from traceprof.render.text.tables import printed

MS = 1_000_000
WORDS = (
    "devices are idle 36.5 % of the time; 1 001.5 steps/s, 12.30 ms of 1.250 s, 85.02 GB at "
    "3.350 TB/s, 24.71 µs (5 ns), 989.4 TFLOP/s, 412.0 W, 3.2 J/step and 17 kernels"
)
_ALONE = re.compile(r"\d$")
_UNIT = re.compile(r"\s*(%|\d{3}\b|[nµkMGTP]?(s|B|W|J|FLOP)\b)")


def broken(text: str) -> list[str]:
    """Return the lines that begin with what belongs to the number that ends the line before."""
    lines = pairwise(text.splitlines())
    return [b for a, b in lines if _ALONE.search(a) and _UNIT.match(b)]


def in_a_cell(text: Text) -> RenderableType:
    table = Table.grid()
    table.add_row("evidence  ", text)
    return table


@pytest.mark.parametrize("colors", ["", "truecolor"])
@pytest.mark.parametrize("drawn", [lambda text: text, lambda text: Group(text, "12 %"), in_a_cell])
def test_a_number_and_its_unit_stay_together(drawn: object, colors: str) -> None:
    assert callable(drawn)
    for width in range(26, 90):
        shown = printed(drawn(Text(WORDS, style="bold")), Options(width=width, colors=colors))
        plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
        assert not broken(plain), width
        assert all(len(line) <= width for line in plain.splitlines()), width
        assert plain.split()[-3:] in (["and", "17", "kernels"], ["kernels", "12", "%"])


def test_what_is_not_wrapped_is_as_it_was() -> None:
    assert printed(Text(WORDS), Options(is_whole=True)) == f"{WORDS}\n"


@pytest.mark.parametrize("view", [findings_in_brief, findings_view])
def test_nor_do_findings_part_them(view: object) -> None:
    assert callable(view)
    builder = TraceBuilder()
    for i in range(6):
        at = 10 * MS * i
        builder.kernel("k", at, at + MS, launched_ns=(at, at + 1000 + i))
        builder.range("load file", at + 2 * MS, at + 9 * MS)
    rows = run("findings", builder.build()).table.rows()
    for width in range(30, 100):
        found = view(list(rows), width)
        shown = printed(found if view is findings_view else Group(*found), Options(width=width))
        assert not broken(shown), width


def test_a_name_between_colons_is_no_picture() -> None:
    table = Table("queue :fire: depth")
    table.add_row("std::copy :bug:")
    shown = printed(table, Options(width=60))
    assert "queue :fire: depth" in shown
    assert "std::copy :bug:" in shown
