"""Convert columns of a Trace to Arrow arrays and back; unknown values are null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceprof.model.table import Column, Names, Table, objects
from traceprof.model.tables import ABSENT, TABLES, ColumnKind, make_table, unit_of

_STORED: Final[Mapping[ColumnKind, pa.DataType]] = {
    ColumnKind.TIME: pa.int64(),
    ColumnKind.NUMBER: pa.int64(),
    ColumnKind.FLOAT: pa.float64(),
    ColumnKind.NAME: pa.dictionary(pa.int32(), pa.string()),
    ColumnKind.TEXT: pa.string(),
}


def schema_of(name: str) -> pa.Schema:
    """Return the Arrow schema of table ``name``; its metadata has the meaning and the units."""
    table = TABLES[name]
    fields = [
        pa.field(column, _STORED[kind], kind is not ColumnKind.TIME, _metadata(column, kind))
        for column, kind in table.columns.items()
    ]
    return pa.schema(fields, {"about": table.summary, "table": name})


def _metadata(column: str, kind: ColumnKind) -> dict[str, str]:
    """Return the Arrow metadata of a column: its kind and unit."""
    unit = unit_of(column)
    return {"kind": kind.value, **({"unit": unit} if unit else {})}


class ColumnNames:
    """The distinct names of a column, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __iter__(self) -> Any:
        return iter(self._numbers)

    def encoded(self, values: Names) -> pa.DictionaryArray:
        """Return ``values`` as a dictionary array with these numbers; new names are added."""
        numbers, texts = self._numbers, values.texts.tolist()
        places = [numbers.setdefault(storable(text), len(numbers)) for text in texts]
        indices = pa.array(values.by_text(np.asarray(places, np.int32)))
        return pa.DictionaryArray.from_arrays(indices, pa.array(list(numbers), pa.string()))


def storable(text: str) -> str:
    """Return ``text`` with characters replaced that UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def batch_of(name: str, rows: Table, names: Mapping[str, ColumnNames]) -> pa.RecordBatch:
    """Return rows of table ``name`` as a record batch; ``names`` has the names of its columns."""
    columns = TABLES[name].columns.items()
    arrays = [_array(rows[column], kind, names.get(column)) for column, kind in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(name))


def _array(values: Column, kind: ColumnKind, names: ColumnNames | None) -> pa.Array:
    """Return a column as an Arrow array, with null for unknown values."""
    if isinstance(values, Names):
        assert names is not None
        return names.encoded(values)
    if kind is ColumnKind.TEXT:
        return pa.array(list(map(storable, values)), pa.string())
    if kind is ColumnKind.TIME:
        return pa.array(values)
    return pa.array(values, mask=np.isnan(values) if kind is ColumnKind.FLOAT else values == ABSENT)


def table_of(name: str, stored: pa.Table, names: Mapping[str, Sequence[str]]) -> Table:
    """Return the rows in ``stored`` as table ``name``; ``names`` gives the order of distinct names.

    Raises:
        pa.ArrowException: a column has values of another kind.
    """
    kinds = TABLES[name].columns
    columns = {
        column: _values(stored[column], kind, names.get(column, ()))
        for column, kind in kinds.items()
        if column in stored.column_names
    }
    missing = {c for c, kind in kinds.items() if kind is ColumnKind.TIME} - columns.keys()
    if missing and stored.num_rows:
        raise pa.ArrowInvalid(f"table {name} lacks {', '.join(sorted(missing))}")
    return make_table(name, columns)


def _values(stored: pa.ChunkedArray, kind: ColumnKind, order: Sequence[str]) -> Any:
    """Return the values of a stored column, with the unknown value of its kind for null.

    Raises:
        pa.ArrowException: the column has values of another kind, or a time is null.
    """
    if kind is ColumnKind.NAME:
        return _names(stored, order)
    if kind is ColumnKind.TEXT:
        return objects(pc.fill_null(stored.cast(pa.string()), "").to_pylist())
    if kind is ColumnKind.FLOAT:
        return stored.cast(pa.float64()).to_numpy()
    if kind is ColumnKind.TIME and stored.null_count:
        raise pa.ArrowInvalid("a time is null")
    return pc.fill_null(stored.cast(pa.int64()), ABSENT).to_numpy()


def _names(stored: pa.ChunkedArray, order: Sequence[str]) -> Names:
    """Return a column of names; names in ``order`` get the first codes."""
    if not pa.types.is_dictionary(stored.type):
        stored = stored.cast(pa.string()).dictionary_encode()
    numbers: dict[str, int] = {name: number for number, name in enumerate(order)}
    codes = [np.empty(0, np.int64)]
    for chunk in stored.chunks:
        texts = chunk.dictionary.cast(pa.string()).to_pylist()
        if chunk.null_count:
            texts = [*texts, None]
        places = [numbers.setdefault(text or "", len(numbers)) for text in texts]
        indices = pc.fill_null(chunk.indices.cast(pa.int64()), len(places) - 1).to_numpy()
        codes.append(np.asarray(places, np.int64)[indices])
    return Names.coded(numbers, np.concatenate(codes))
