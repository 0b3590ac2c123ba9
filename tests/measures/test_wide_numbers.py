"""Numbers that are stored in few bytes give the tables that numbers of 64 bits give.

All is computed twice, the second time with nothing packed: where numpy wrapped, the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
import pytest

from tests.checked_numbers import checked_numbers
from tests.measures.stressed import LARGEST_ID, MANY, SHAPES, many_ranks, stressed
from tests.running import run
from traceprof.errors import TraceprofError
from traceprof.measures import ANALYSES
from traceprof.model import packed
from traceprof.model.names import Names
from traceprof.model.packed import Packed
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.trace import Trace

_SLOW: Final = frozenset({"findings", "ideal"})
_OF_DEVICES: Final = ("summary", "kernels", "durations", "classes", "copies", "streams", "launches")
ASKED: Final[dict[str, tuple[str, ...]]] = {
    "names": (*_OF_DEVICES, "breakdown", "gaps", "path"),
    "paths": ("layers", "ranges", "range-work", "tree", "operators"),
    "threads": _OF_DEVICES,
    "below 16 bits": ("summary", "launches", "range-work", "tree", "operators"),
    "few": tuple(one.name for one in ANALYSES),
}
"""What is asked of a shape; of others all but what takes long: that is asked of few rows."""
MAKE: Final[dict[str, Callable[[], Trace | Ranks]]] = {
    **{name: partial(stressed, shape) for name, shape in SHAPES.items()},
    "ranks": partial(many_ranks, 130),
}


@contextmanager
def nothing_packed() -> Iterator[None]:
    """Let every number be stored in 64 bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "_type_for", lambda _: np.dtype(np.int64))
        assert Packed(np.array([1])).stored.dtype == np.int64
        yield


def answers(of: Trace | Ranks, names: tuple[str, ...]) -> dict[str, Any]:
    """Return what each analysis says: its columns, scalars and notes, or why it says nothing."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = plain(run(name, of))
        except TraceprofError as error:
            found[name] = str(error)
    return found


def plain(result: Result) -> dict[str, str]:
    """Return all of a result as texts: in these NaN is NaN."""
    tables = {
        f"{table}.{column}": repr(own[column].tolist())
        for table, own in result.tables.items()
        for column in own
    }
    notes = [(note.text, str(note.values)) for note in result.notes]
    return {**tables, "scalars": str(dict(result.scalars)), "notes": str(notes)}


@pytest.mark.parametrize("name", MAKE)
def test_packed_numbers_give_what_wide_ones_give(name: str) -> None:
    every = tuple(one.name for one in ANALYSES if one.name not in _SLOW)
    asked = ASKED.get(name, every)
    found = answers(MAKE[name](), asked)
    with nothing_packed():
        expected = answers(MAKE[name](), asked)
    assert [own for own in found.values() if not isinstance(own, str)]
    assert {own for own in asked if found[own] != expected[own]} == set()


@pytest.mark.parametrize("name", ["few", "pairs", "below 8 bits"])
def test_nobody_computes_with_packed_numbers(name: str) -> None:
    asked = ASKED.get(name, ("steps", "idle", "kernels", "tree", "path", "streams", "summary"))
    with checked_numbers():
        found = answers(MAKE[name](), asked)
    assert [own for own in found.values() if not isinstance(own, str)]


def test_whoever_computes_with_packed_numbers_is_found() -> None:
    with checked_numbers():
        numbers = Packed(np.array([100, 27]))
        assert (numbers.wide() + 100).tolist() == [200, 127]
        assert (numbers.stored == 27).tolist() == [False, True]
        assert numbers[np.array([1])].tolist() == [27]
        for compute in (np.add, np.subtract, np.multiply):
            with pytest.raises(AssertionError, match="of packed numbers of type int8"):
                compute(numbers.stored, numbers[::-1].stored)
        names = Names.of(["a", "b"])
        with pytest.raises(AssertionError):
            names.by_text(np.array([1, 2], np.int8))


def test_the_shapes_are_beyond_what_few_bytes_number() -> None:
    trace = stressed(SHAPES["streams"])
    streams = trace.kernels["stream"]
    assert len(np.unique(streams)) == MANY > 1 << 16
    assert int(streams.max()) == LARGEST_ID - 1
    assert int(trace.kernels["start_ns"][0]) < 0
    assert len(trace.kernels["name"].distinct()) == SHAPES["streams"].names


@pytest.mark.parametrize("name", ["below 16 bits", "below 8 bits"])
def test_no_path_of_ranges_is_lost(name: str) -> None:
    shape = SHAPES[name]
    found = run("tree", stressed(shape))
    n_paths = len(found.table) + found.scalars["left_out_count"]
    assert n_paths >= 2 * shape.paths


def test_equal_durations_of_ranks_do_not_deviate() -> None:
    table = run("summary", many_ranks(130)).table
    is_equal = table["min_ns"] == table["max_ns"]
    assert is_equal.sum() == 4
    assert table["deviation_ns"][is_equal].tolist() == [0.0] * 4
