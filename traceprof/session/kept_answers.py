"""Cached answers about one window of a run, which one command stores and others reuse.

Values are encoded to bytes and decoded exactly. Decoding runs no code from the data: it creates
only the classes named here, from numbers, texts, arrays of plain numbers, tables, and containers of
these. Any other value is not cached, so it is computed again next time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Final

import numpy as np

from traceprof.errors import TraceprofError
from traceprof.measures import load_analysis
from traceprof.model.results import Result
from traceprof.model.table import Names, Table
from traceprof.session.run_cache import RunCache

_CLASSES: Final[Mapping[str, str]] = {
    "Document": "traceprof.session.answer",
    "Note": "traceprof.model.results",
    "RecordingCost": "traceprof.model.trace",
    "Selection": "traceprof.session.selection",
    "SourceFile": "traceprof.model.summary",
    "Summary": "traceprof.model.summary",
    "TimeWindow": "traceprof.model.timing",
    "TraceInfo": "traceprof.model.trace",
    "Verdict": "traceprof.session.verdict",
    "Workload": "traceprof.measures.workload",
}
_PLAIN: Final = (type(None), bool, float, str, bytes)
_NUMBERS: Final = "biuf"


_UNREADABLE: Final = (
    *(AttributeError, LookupError, RecursionError, TypeError, ValueError),
    TraceprofError,
)
"""The errors that decoding raises for bytes that `encode` did not write."""


class CodecError(Exception):
    """A value cannot be encoded exactly, or bytes cannot be decoded."""


def encode(value: Any) -> bytes:
    """Return ``value`` as bytes.

    Raises:
        CodecError: a part of the value cannot be encoded exactly.
    """
    import msgspec  # noqa: PLC0415 (not needed without a cache)

    try:
        return msgspec.msgpack.encode(_plain(value))
    except (OverflowError, TypeError, RecursionError, UnicodeEncodeError) as error:
        raise CodecError(str(error)) from error


def decode(data: bytes) -> Any:
    """Return the value in ``data``, which `encode` wrote.

    Raises:
        CodecError: ``data`` is not an encoded value.
    """
    import msgspec  # noqa: PLC0415 (not needed without a cache)

    try:
        return _value(msgspec.msgpack.decode(data))
    except _UNREADABLE as error:
        raise CodecError(str(error)) from error


def _plain(value: Any) -> Any:
    """Return ``value`` in types of MessagePack; a value that is not a scalar becomes [kind, …]."""
    kind = type(value)
    if kind in _PLAIN or kind is int:
        return value
    if isinstance(value, np.generic):
        return ["number", *_array(np.array([value]))[1:]]
    if kind in _WRITERS:
        return _WRITERS[kind](value)
    if kind is Result:
        return _plain_result(value)
    if kind.__name__ in _CLASSES and kind.__module__ == _CLASSES[kind.__name__]:
        values = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return ["object", kind.__name__, values]
    raise CodecError(f"cannot encode a {kind.__name__}")


def _plain_result(result: Result) -> Any:
    """Return a result as ["result", name, tables, scalars, notes, lacks].

    Raises:
        CodecError: the result has samples, or its declaration is not that of its analysis.
    """
    if result.samples or load_analysis(result.name).spec is not result.spec:
        raise CodecError(f"result {result.name} does not match its declaration")
    parts = (dict(result.tables), dict(result.scalars), result.notes, result.lacks)
    return ["result", result.name, *map(_plain, parts)]


def _array(values: Any) -> list[Any]:
    """Return a one-dimensional array as ["numbers", dtype, bytes] or ["objects", values]."""
    dtype = values.dtype
    if dtype.kind in _NUMBERS and values.ndim == 1:
        return ["numbers", dtype.str, np.ascontiguousarray(values).tobytes()]
    if dtype.kind == "O" and values.ndim == 1:
        return ["objects", [_plain(value) for value in values.tolist()]]
    raise CodecError(f"cannot encode a column of type {dtype}")


def _table(table: Table) -> list[Any]:
    return ["table", len(table), [[name, _plain(column)] for name, column in table.columns.items()]]


_WRITERS: Final[Mapping[type, Callable[[Any], Any]]] = {
    list: lambda value: ["list", [_plain(item) for item in value]],
    tuple: lambda value: ["tuple", [_plain(item) for item in value]],
    frozenset: lambda value: ["frozenset", sorted(value)],
    dict: lambda value: ["dict", [[_plain(key), _plain(item)] for key, item in value.items()]],
    np.ndarray: _array,
    Names: lambda names: ["names", _array(names.packed.stored), names.texts.tolist()],
    Table: _table,
}


def _value(plain: Any) -> Any:
    """Return the value of ``plain``, the reverse of `_plain`."""
    if not isinstance(plain, list):
        return plain
    kind, *arguments = plain
    return _READERS[kind](*arguments)


def _numbers(dtype: str, data: bytes) -> Any:
    if np.dtype(dtype).kind not in _NUMBERS:
        raise CodecError(f"invalid number type {dtype}")
    return np.frombuffer(data, dtype).copy()


def _objects(values: list[Any]) -> Any:
    found = np.empty(len(values), object)
    for index, value in enumerate(values):
        found[index] = _value(value)
    return found


def _read_table(n_rows: int, columns: list[Any]) -> Table:
    return Table({str(name): _column(_value(column)) for name, column in columns}, n_rows)


def _column(values: Any) -> Any:
    if not isinstance(values, np.ndarray | Names):
        raise CodecError("not a column")
    return values


def _read_names(codes: Any, texts: list[Any]) -> Names:
    """Return the names with these codes, after checks that every code has a text."""
    found = _value(codes)
    if not all(type(text) is str for text in texts) or (
        len(found) and not 0 <= found.min() <= found.max() < len(texts)
    ):
        raise CodecError("invalid name indices")
    return Names(found, texts)


def _object(name: str, values: dict[str, Any]) -> Any:
    """Return an object of one of `_CLASSES`, made from its encoded fields."""
    known_class = getattr(import_module(_CLASSES[name]), name)
    return known_class(**{field_name: _value(value) for field_name, value in values.items()})


def _result(name: str, tables: Any, scalars: Any, notes: Any, lacks: str) -> Result:
    spec = load_analysis(name).spec
    return Result(name, spec, _value(tables), _value(scalars), _value(notes), lacks=str(lacks))


_READERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": lambda dtype, data: _numbers(dtype, data)[0],
    "numbers": _numbers,
    "objects": _objects,
    "names": _read_names,
    "list": lambda values: [_value(item) for item in values],
    "tuple": lambda values: tuple(_value(item) for item in values),
    "frozenset": frozenset,
    "dict": lambda pairs: {_value(key): _value(item) for key, item in pairs},
    "table": _read_table,
    "object": _object,
    "result": _result,
}


@dataclass(frozen=True, slots=True)
class KeptAnswers:
    """The cached answers about the window ``window`` of a run."""

    cache: RunCache
    window: str | None

    def value(self, what: tuple[object, ...]) -> Any:
        """Return the cached value with the key ``what``, or None."""
        data = self.cache.get("window", self.window, *what)
        try:
            return None if data is None else decode(data)
        except CodecError:
            return None

    def keep(self, values: Mapping[tuple[object, ...], Any]) -> None:
        """Cache ``values`` by their keys; values that cannot be encoded exactly are skipped."""
        contents: dict[tuple[object, ...], bytes] = {}
        for what, value in values.items() if self.cache.keeps else ():
            with suppress(CodecError):
                contents["window", self.window, *what] = encode(value)
        self.cache.put(contents)
