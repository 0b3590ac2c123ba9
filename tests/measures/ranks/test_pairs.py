import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.measures.collectives.waits import find_rows_in, find_values_in
from traceprof.model.compact import CompactTable

rows = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 3)), max_size=12)


def table_of(rows: list[tuple[int, int]]) -> CompactTable:
    both = np.array(rows, np.int64).reshape(-1, 2)
    return CompactTable(
        {"match": both[:, 0], "member": both[:, 1], "wait_ns": np.arange(len(rows)) * 10}
    )


@given(rows, rows)
def test_rows_are_found_by_match_and_member(
    there: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    table, asked = table_of(there), table_of(wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("traceprof.measures.collectives.waits._ROWS_PER_PIECE", 5)
        pieces = find_rows_in(table, asked).tolist()
    known = [pair if min(pair) >= 0 else None for pair in there]
    expected = [known.index(pair) if pair in known else -1 for pair in wanted]
    assert find_rows_in(table, asked).tolist() == pieces == expected
    waits = [10 * place if place >= 0 else -7 for place in expected]
    assert find_values_in(table, asked, "wait_ns", -7).tolist() == waits
