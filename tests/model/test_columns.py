"""Columns are declared in lines of text."""

from __future__ import annotations

import pytest

from traceprof.model.results import (
    ResultSpec,
    TableSpec,
    Unit,
    columns,
    derived,
    key,
    mean,
    same,
    total,
)


def test_a_line_is_how_it_combines_its_name_and_what_it_means() -> None:
    declared = columns(
        """
        key device: the device
        key name: what it is; "" for none
        total busy_ns: when it worked,
            whatever it did
        mean(count) waves [number]: how often: at most
        same is_late: whether it is
        derived bytes_per_s: how fast
        """
    )
    assert declared == (
        key("device", "the device", Unit.NUMBER),
        key("name", 'what it is; "" for none'),
        total("busy_ns", Unit.NS, "when it worked, whatever it did"),
        mean("waves", Unit.NUMBER, "how often: at most", "count"),
        same("is_late", Unit.FLAG, "whether it is"),
        derived("bytes_per_s", Unit.BYTES_PER_S, "how fast"),
    )


def test_texts_and_columns_make_tables_and_these_a_result() -> None:
    own = total("count", Unit.COUNT, "how many")
    table = TableSpec.of("table x: one row per x\nkey x: it", own, "same at_ns: when")
    spec = ResultSpec.of(table, "table y: two\nkey z: it\nscalars:\nsame a: one\nsame b_ratio: c")
    assert [table.name for table in spec.tables] == ["x", "y"]
    assert spec.table("x").about == "one row per x"
    assert [column.name for column in spec.table("x")] == ["x", "count", "at_ns"]
    assert [column.unit for column in spec.scalars] == [Unit.TEXT, Unit.RATIO]
    assert ResultSpec.of(table).scalars == ()


@pytest.mark.parametrize("line", ["total busy_ns", "busy_ns: when", "often x: y", "same x [m]: y"])
def test_what_declares_no_column_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"column|valid"):
        columns(line)
