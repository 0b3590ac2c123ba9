"""Tables for people and programs: ranks where there are several, words instead of numbers."""

from __future__ import annotations

from traceprof.model.results import (
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    same,
    total,
)
from traceprof.model.table import Table
from traceprof.render.shown import further_tables, table_for_people, table_of

SPEC = ResultSpec(
    (
        TableSpec(
            "times",
            "one row per name and process",
            (
                key("name", "its name"),
                key("process", "its process", Unit.NUMBER),
                total("total_ns", Unit.NS, "how long"),
            ),
        ),
        TableSpec("sums", "all", (total("total_ns", Unit.NS, "how long"),)),
    )
)
TWO_RANKS = {70: 1, 80: 0}


def times(*processes: int) -> Result:
    table = Table({"name": "x", "process": processes, "total_ns": 1})
    return Result("times", SPEC, {"times": table})


def names(table: object) -> list[str]:
    return [column.name for column in table]  # type: ignore[attr-defined]


def test_processes_of_a_run_are_named_by_their_ranks() -> None:
    result = times(80, 70, 70)
    table = table_of(result, TWO_RANKS)
    assert names(table) == list(table.values) == ["name", "rank", "process", "total_ns"]
    assert table.values["rank"].tolist() == [0, 1, 1]
    assert names(table_for_people(result, TWO_RANKS)) == ["name", "rank", "total_ns"]


def test_a_process_of_no_rank_keeps_its_number() -> None:
    result = times(90, 91, 70)
    assert table_of(result, TWO_RANKS).values["rank"].tolist() == [None, None, 1]
    shown = table_for_people(result, TWO_RANKS)
    assert names(shown) == ["name", "rank", "process", "total_ns"]


def test_a_rank_of_several_processes_keeps_their_numbers() -> None:
    shown = table_for_people(times(70, 71, 80), {70: 0, 71: 0, 80: 1})
    assert names(shown) == ["name", "rank", "process", "total_ns"]


def test_a_trace_of_one_rank_is_shown_by_processes() -> None:
    assert names(table_for_people(times(70, 71), {70: 0})) == ["name", "process", "total_ns"]


def test_the_table_of_the_result_stays_as_it_is() -> None:
    result = times(80, 70)
    table_of(result, TWO_RANKS)
    assert list(result.table) == ["name", "process", "total_ns"]


def test_small_tables_stand_beside_the_first_and_large_ones_when_asked() -> None:
    small = times(70).with_table(Table({"total_ns": [1] * 5}), "sums")
    large = times(70).with_table(Table({"total_ns": [1] * 6}), "sums")
    empty = times(70).with_table(Table({"total_ns": []}), "sums")
    assert further_tables(small, ()) == ["sums"]
    assert further_tables(large, ()) == further_tables(empty, ()) == further_tables(times(), ())
    assert further_tables(large, ("sums",)) == ["sums"]


STEPS = ResultSpec(
    (
        TableSpec(
            "steps",
            "steps",
            (
                key("step", "its number", Unit.NUMBER),
                same("is_warmup", Unit.FLAG, "whether it is warm-up"),
                same("excess_ns", Unit.NS, "how much longer than usual"),
                same("grown_part", Unit.TEXT, "which part"),
                same("grown_part_ns", Unit.NS, "by how much"),
                same("grown_phase", Unit.TEXT, "which phase"),
                same("grown_phase_ns", Unit.NS, "by how much"),
                derived("samples_per_s", Unit.PER_S, "throughput"),
            ),
        ),
    )
)


def test_why_a_step_is_slow_is_one_sentence() -> None:
    nan = float("nan")
    rows = [
        (0, False, nan, "", nan, "", nan, nan),
        (1, False, 3e6, "idle", 2.5e6, "data", 2e6, nan),
        (2, False, 3e6, "", nan, "profiler", 2e6, nan),
        (3, False, -2e6, "exposed_communication", -2e6, "", nan, nan),
        (4, False, 9e6, "", nan, None, nan, nan),
    ]
    columns = [column.name for column in STEPS.tables[0]]
    steps = Table.of_rows([dict(zip(columns, row, strict=True)) for row in rows])
    table = table_for_people(Result("steps", STEPS, {"steps": steps}), {})
    assert names(table) == ["step", "remark"]
    assert table.values["remark"].tolist() == [
        "",
        "slow by 3.00 ms: idle +2.50 ms, data +2.00 ms",
        "slow by 3.00 ms: the profiler itself +2.00 ms",
        "fast by 2.00 ms: exposed communication -2.00 ms",
        "slow by 9.00 ms: no part of it stands out",
    ]


def test_columns_that_say_nothing_are_for_programs_only() -> None:
    steps = Table({"step": [1, 2], "is_warmup": [False, False], "samples_per_s": None})
    result = Result("steps", STEPS, {"steps": steps})
    assert names(table_of(result)) == ["step", "is_warmup", "samples_per_s"]
    assert names(table_for_people(result, {})) == ["step"]
