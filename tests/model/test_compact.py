from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from traceprof.model.compact import CompactTable
from traceprof.model.grouping import codes_of
from traceprof.model.table import Table

N_ROWS = 1500
"""More than the rows below which numbers are not coded."""


def compact(frame: pd.DataFrame) -> CompactTable:
    return CompactTable({str(name): frame[name].to_numpy() for name in frame})


def plain(table: Table) -> pd.DataFrame:
    columns = {name: np.asarray(table[name]) for name in table}
    return pd.DataFrame({name: pd.Series(own, dtype=own.dtype) for name, own in columns.items()})


def table_of(seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    large = random.integers(0, 1 << 62, N_ROWS)
    floats = random.integers(0, 1000, N_ROWS).astype(np.float64)
    return pd.DataFrame(
        {
            "text": random.choice(np.array(["", "all_reduce", "a"], object), N_ROWS),
            "mixed": np.array([None, 1, "x"] * (N_ROWS // 3), object),
            "flag": random.random(N_ROWS) < 0.5,
            "small": random.integers(-100, 100, N_ROWS),
            "large": large,
            "few_large": large[random.integers(0, 5, N_ROWS)],
            "whole": floats,
            "zeros": np.where(random.random(N_ROWS) < 0.5, 0.0, -0.0),
            "unknown": np.where(floats > 500, np.nan, floats),
            "broken": floats / 3,
        }
    ).astype({"text": object})


@settings(max_examples=20)
@given(st.integers(0, 1 << 30), st.integers(0, N_ROWS), st.integers(0, N_ROWS))
def test_what_comes_out_is_what_went_in(seed: int, first: int, second: int) -> None:
    frame = table_of(seed)
    cuts = sorted((first, second))
    parts = [frame[: cuts[0]], frame[cuts[0] : cuts[1]], frame[cuts[1] :]]
    table = CompactTable.stacked([compact(part) for part in parts])
    pd.testing.assert_frame_equal(plain(table), frame, check_exact=True)
    for name in ("zeros", "unknown"):
        assert bits(table[name]) == bits(frame[name].to_numpy())
    order = np.random.default_rng(seed).permutation(N_ROWS)
    is_kept = (frame["small"] > 0).to_numpy()
    chosen = table.take(order).laid_out().take(is_kept).take(np.array([3, 1]))
    expected = frame.iloc[order][is_kept].iloc[[3, 1]].reset_index(drop=True)
    pd.testing.assert_frame_equal(plain(chosen), expected, check_exact=True)
    assert chosen["small"].tolist() == expected["small"].tolist()


def bits(values: npt.NDArray[Any]) -> bytes:
    return values.tobytes()


def test_rows_are_told_by_their_values() -> None:
    frame = table_of(1)
    table = compact(frame).take((frame["small"] > 50).to_numpy())
    expected = frame[frame["small"] > 50]
    for name in frame:
        codes = pd.factorize(np.asarray(codes_of(table[str(name)])))[0]
        own = pd.factorize(expected[name].to_numpy(), use_na_sentinel=False)[0]
        if name != "zeros":  # codes tell the two zeros apart
            assert codes.tolist() == own.tolist()
    assert table["text"].isin(("", "a")).tolist() == expected["text"].isin(["", "a"]).tolist()


def test_columns_are_added_to_the_rows_that_are_meant() -> None:
    table = CompactTable({"a": np.arange(10)}).take(np.array([7, 2]))
    both = table.assign(b=np.array([1, 2]), c=np.array(["x", "y"], object))
    assert plain(both).to_dict("list") == {"a": [7, 2], "b": [1, 2], "c": ["x", "y"]}
    assert [*both] == ["a", "b", "c"] and not both.empty


def test_rows_of_many_ranks_take_few_bytes() -> None:
    n = 100_000
    at_ns = np.arange(n, dtype=np.int64) * 1_000_000 + (1 << 60)
    table = CompactTable(
        {
            "start_ns": at_ns,
            "op": np.array(["all_reduce", "broadcast"], object)[np.arange(n) % 2],
            "n_bytes": np.full(n, 1 << 40),
            "stream": np.full(n, 7),
            "match": np.arange(n) // 8,
        }
    )
    assert table.n_bytes == n * (8 + 1 + 1 + 1 + 2)


def test_few_numbers_are_kept_as_they_are_and_stacked_with_others() -> None:
    few, many = (CompactTable({"a": np.arange(n), "b": np.full(n, np.nan)}) for n in (3, 100))
    assert few.n_bytes == 3 * 16
    assert many.n_bytes < 100 * 16
    both = CompactTable.stacked([few, many, few])
    assert both["a"].tolist() == [*range(3), *range(100), *range(3)]
    assert np.isnan(both["b"]).all()
    assert both.n_bytes < many.n_bytes * 2
