"""Tables for people: ranks where there are several."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from tests.builders import TraceBuilder
from traceprof.analysis.base import table_of
from traceprof.render.columns import shown_table


@dataclass(frozen=True)
class _Times:
    processes: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        return pd.DataFrame({"name": "x", "process": self.processes, "total_ns": 1})


TWO_RANKS = TraceBuilder().process(70, rank=1).process(80, rank=0).process(90).build()


def test_processes_of_a_run_are_named_by_their_ranks() -> None:
    result = _Times((80, 70, 70))
    assert list(table_of(result, TWO_RANKS)) == ["name", "rank", "process", "total_ns"]
    assert table_of(result, TWO_RANKS)["rank"].tolist() == [0, 1, 1]
    assert list(shown_table(result, TWO_RANKS)) == ["name", "rank", "total_ns"]


def test_a_process_of_no_rank_keeps_its_number() -> None:
    result = _Times((90, 91, 70))
    assert table_of(result, TWO_RANKS)["rank"].tolist() == [None, None, 1]
    assert list(shown_table(result, TWO_RANKS)) == ["name", "rank", "process", "total_ns"]


def test_a_trace_of_one_rank_is_shown_by_processes() -> None:
    one = TraceBuilder().process(70, rank=0).process(71).build()
    assert list(shown_table(_Times((70, 71)), one)) == ["name", "process", "total_ns"]
