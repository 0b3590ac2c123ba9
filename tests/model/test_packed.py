"""Packed numbers are for storage: what is computed of them is computed in 64 bits."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.cache import scratch
from traceprof.model.compact import CompactTable
from traceprof.model.packed import Packed
from traceprof.model.results import Samples
from traceprof.model.table import Names, Table

NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-129, -128, -1, 0, 127, 128, 32_767, 32_768, 2**31 - 1, 2**31, 2**62]),
)


def test_the_smallest_type_holds_the_numbers_and_their_negatives() -> None:
    assert Packed(np.array([-1, 127])).stored.dtype == np.int8
    assert Packed(np.array([128])).stored.dtype == np.int16
    assert Packed(np.array([-(2**31) - 1])).stored.dtype == np.int64
    assert Packed(np.array([], np.int64)).stored.dtype == np.int8
    assert Packed.below(129, np.array([128, -1])).stored.dtype == np.int16
    assert Packed.repeated(-129, 2).tolist() == [-129, -129]


@given(st.lists(NUMBERS, max_size=40), st.lists(NUMBERS, max_size=40))
def test_what_comes_out_is_what_went_in(first: list[int], second: list[int]) -> None:
    values, others = np.array(first, np.int64), np.array(second, np.int64)
    packed = Packed(values)
    assert packed.tolist() == [*packed] == first
    assert packed.wide().dtype == np.asarray(packed).dtype == np.int64
    assert np.array_equal(packed.wide(), values)
    assert Packed.joined([packed, Packed(others)]).tolist() == first + second
    assert pickle.loads(pickle.dumps(packed)).tolist() == first
    order = np.argsort(values, kind="stable")
    assert packed[order].tolist() == sorted(first)
    assert Packed(packed[Packed(order)]).tolist() == sorted(first)
    for value in {*first[:3], 0, 2**62}:
        assert (packed == value).tolist() == (values == value).tolist()
        assert (packed != value).tolist() == (values != value).tolist()


def test_no_number_is_added_to_packed_ones() -> None:
    packed: Any = Packed([100, 27])
    operations: list[Callable[[], Any]] = [
        lambda: packed + 1,
        lambda: packed - packed,
        lambda: packed * 2,
        lambda: -packed,
        lambda: abs(packed),
        lambda: packed << 1,
        lambda: packed < 3,
        lambda: packed // 2,
    ]
    for compute in operations:
        with pytest.raises(TypeError):
            compute()
    # numpy takes them for numbers of 64 bits.
    assert np.add(packed, packed).tolist() == [200, 54]
    assert np.add(packed, packed).dtype == np.int64
    assert (np.array([1, 1]) + packed).tolist() == [101, 28]


def test_wide_numbers_do_not_change_the_packed_ones() -> None:
    for numbers in ([1, 2], [1, 2**62]):
        packed = Packed(np.array(numbers))
        wide = packed.wide()
        if wide.flags.writeable:
            wide[0] = 9
        assert packed.tolist() == numbers


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "u1", "u2", "u4"])
@pytest.mark.parametrize("make", [Table, CompactTable])
def test_a_table_gives_numbers_of_64_bits(kind: str, make: type[Table]) -> None:
    most = int(np.iinfo(kind).max)
    given = np.array([most, 0, most] * 20, kind)
    table = make({"a": given, "b": Packed(given.astype(np.int64)), "n": np.arange(60)})
    more = table.assign(c=given)
    chosen = np.arange(60)[::-1]
    for own in (
        table,
        more,
        table.take(chosen),
        table.take(slice(3, 60)),
        table.take(given > 0),
        table.in_order("-a", "n"),
        table.select("a", "b"),
        table.renamed(a="d"),
        table.on_disk(),
        make.stacked([table, table]),
        Table.stacked([table.select("a", "b"), Table({"a": np.arange(3), "b": Packed([1, 2, 3])})]),
    ):
        for name in own:
            assert own[name].dtype == own.columns[name].dtype == np.int64, name
        assert int(own[next(iter(own))].max()) == most
    assert table.order("-a").tolist() == np.argsort(-given.astype(np.int64), kind="stable").tolist()


def test_columns_stay_packed_while_nobody_looks_at_them() -> None:
    table = Table({"a": Packed(np.arange(100)), "b": np.arange(100)})
    for own in (table, table.take(np.arange(50)), Table.stacked([table, table])):
        assert own.stored("a").stored.dtype == np.int8
        assert isinstance(own.stored("b"), np.ndarray)


def test_packed_columns_on_the_disk_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "MIN_DISK_BYTES", 64)
    monkeypatch.setattr(scratch, "MAX_KEPT_BYTES", 0)
    table = Table({"a": Packed(np.arange(100)), "n": Names.of([f"{i % 9}" for i in range(100)])})
    aside = table.on_disk()
    assert aside is not table
    for own in (aside, pickle.loads(pickle.dumps(aside)), aside.take_on_disk(slice(0, 100))):
        assert own["a"].dtype == np.int64
        assert own["a"].tolist() == [*range(100)]
        assert own.stored("a").stored.dtype == np.int8
        assert own["n"].tolist() == [f"{i % 9}" for i in range(100)]


def test_rows_that_sort_last_first_include_the_least_number() -> None:
    least = -(2**63)
    table = Table({"a": np.array([least, 0, 2**63 - 1])})
    assert table.in_order("-a")["a"].tolist() == [2**63 - 1, 0, least]


def test_names_have_codes_of_64_bits() -> None:
    for n_texts in (3, 200, 40_000):
        texts = [f"{number:05}" for number in range(n_texts)]
        names = Names.of(texts)
        assert names.codes.dtype == np.int64
        assert names.packed.stored.dtype.itemsize < 8
        assert (names.codes * n_texts).max() == (n_texts - 1) * n_texts
        assert Names.joined([names, names]).codes.dtype == np.int64


def test_samples_give_numbers_of_64_bits() -> None:
    samples = Samples(Packed([0, 1]), Packed([100, 120]), Packed([2, 3]))
    both = Samples.joined([samples, Samples(np.array([0]), np.array([7]))])
    for own in (samples, both, both.take(slice(1)), samples.with_rows(Packed([5, 300]))):
        assert own.counts is not None
        assert own.rows.dtype == own.values.dtype == own.counts.dtype == np.int64
    assert (samples.values * samples.values).tolist() == [10_000, 14_400]
    assert both.counts is not None
    assert both.counts.tolist() == [2, 3, 1]
    assert samples.with_rows(Packed([5, 300])).rows.tolist() == [5, 300]
