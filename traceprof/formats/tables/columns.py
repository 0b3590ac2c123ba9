"""The columns of a Trace as Arrow arrays, and back: what is not known is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from traceprof.model.tables import ABSENT, TABLES, ColumnKind, make_table, unit_of

_STORED: Final[Mapping[ColumnKind, pa.DataType]] = {
    ColumnKind.TIME: pa.int64(),
    ColumnKind.NUMBER: pa.int64(),
    ColumnKind.FLOAT: pa.float64(),
    ColumnKind.NAME: pa.dictionary(pa.int32(), pa.string()),
    ColumnKind.TEXT: pa.string(),
}


def schema_of(name: str) -> pa.Schema:
    """Return the schema of table ``name``; its metadata tell what it is, and the units."""
    table = TABLES[name]
    fields = [
        pa.field(column, _STORED[kind], kind is not ColumnKind.TIME, _about(column, kind))
        for column, kind in table.columns.items()
    ]
    return pa.schema(fields, {"about": table.summary, "table": name})


def _about(column: str, kind: ColumnKind) -> dict[str, str]:
    unit = unit_of(column)
    return {"kind": kind.value, **({"unit": unit} if unit else {})}


class ColumnNames:
    """The distinct names of a column, numbered in the order in which parts of it bring them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __iter__(self) -> Any:
        return iter(self._numbers)

    def encoded(self, values: pd.Categorical) -> pa.DictionaryArray:
        """Return ``values`` by their numbers; those that are missing are null."""
        numbers = self._numbers
        places = [numbers.setdefault(storable(one), len(numbers)) for one in values.categories]
        codes = np.asarray([*places, -1], np.int32)[values.codes]
        indices = pa.array(codes, mask=codes < 0)
        return pa.DictionaryArray.from_arrays(indices, pa.array(list(numbers), pa.string()))


def storable(text: object) -> str:
    """Return ``text`` as UTF-8 can hold it."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def batch_of(name: str, frame: pd.DataFrame, names: Mapping[str, ColumnNames]) -> pa.RecordBatch:
    """Return rows of table ``name``; ``names`` has those of each column of names so far."""
    columns = TABLES[name].columns.items()
    arrays = [_array(frame[column], kind, names.get(column)) for column, kind in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(name))


def _array(values: pd.Series, kind: ColumnKind, names: ColumnNames | None) -> pa.Array:
    if names is not None:
        return names.encoded(values.array)
    if kind is ColumnKind.TEXT:
        return pa.array(list(map(storable, values)), pa.string())
    plain = values.to_numpy()
    if kind is ColumnKind.TIME:
        return pa.array(plain)
    return pa.array(plain, mask=np.isnan(plain) if kind is ColumnKind.FLOAT else plain == ABSENT)


def frame_of(name: str, stored: pa.Table, names: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Return the rows in ``stored`` as those of table ``name``, its names in the order given.

    Raises:
        pa.ArrowException: a column is none of its kind.
    """
    table = TABLES[name]
    columns = {
        column: _values(stored[column], kind, names.get(column, ()))
        for column, kind in table.columns.items()
        if column in stored.column_names
    }
    missing = {c for c, kind in table.columns.items() if kind is ColumnKind.TIME} - columns.keys()
    if missing and stored.num_rows:
        raise pa.ArrowInvalid(f"table {name} without {', '.join(sorted(missing))}")
    return make_table(name, columns)


def _values(stored: pa.ChunkedArray, kind: ColumnKind, order: Sequence[str]) -> Any:
    if kind is ColumnKind.NAME:
        return _categorical(stored, order)
    if kind is ColumnKind.TEXT:
        filled = pc.fill_null(stored.cast(pa.string()), "")
        return np.asarray(filled.to_pylist(), object)
    if kind is ColumnKind.FLOAT:
        return stored.cast(pa.float64()).to_numpy()
    if kind is ColumnKind.TIME and stored.null_count:
        raise pa.ArrowInvalid("a time that is null")
    return pc.fill_null(stored.cast(pa.int64()), ABSENT).to_numpy()


def _categorical(stored: pa.ChunkedArray, order: Sequence[str]) -> pd.Categorical:
    if not pa.types.is_dictionary(stored.type):
        stored = stored.cast(pa.string()).dictionary_encode()
    numbers: dict[str, int] = {name: number for number, name in enumerate(order)}
    codes = [np.empty(0, np.int64)]
    for chunk in stored.chunks:
        words = chunk.dictionary.cast(pa.string()).to_pylist()
        places = [-1 if w is None else numbers.setdefault(w, len(numbers)) for w in words]
        indices = pc.fill_null(chunk.indices.cast(pa.int64()), len(places)).to_numpy()
        codes.append(np.asarray([*places, -1], np.int64)[indices])
    index = pd.Index(list(numbers), dtype=object)
    return pd.Categorical.from_codes(np.concatenate(codes), index)
