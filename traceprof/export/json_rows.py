"""Rows of a table as texts of JSON, made column by column rather than row by row."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from traceprof.render.escape import visible_text

__all__ = [
    "Text",
    "as_json",
    "bytes_of",
    "joined",
    "microseconds",
    "names_as_json",
    "number",
    "quoted",
]

Text: TypeAlias = "str | pa.Array"
"""The same text in every row, or one for each."""

_FRACTIONS: Final = pa.array([f".{ns:03d}" for ns in range(1000)])


def joined(*pieces: Text) -> pa.Array:
    """Return the pieces of each row as one text; at least one of them is an array."""
    whole = [pa.scalar(piece) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*whole, "")


def bytes_of(texts: pa.Array) -> bytes:
    """Return the texts, one after the other."""
    return "".join(texts.to_pylist()).encode("utf-8", "replace")


def microseconds(ns: npt.NDArray[np.int64]) -> pa.Array:
    """Return times as decimal microseconds, exact to the nanosecond."""
    signs = pa.array(np.where(ns < 0, "-", ""), pa.string())
    size = np.abs(ns)
    whole = pa.array(size // 1000).cast(pa.string())
    return joined(signs, whole, _FRACTIONS.take(pa.array(size % 1000)))


def number(key: str, values: npt.NDArray[Any], is_known: npt.NDArray[np.bool_]) -> pa.Array:
    """Return ``,"key":value`` for each row; nothing where the value is not known."""
    texts = pa.array(np.asarray(values)).cast(pa.string())
    return pc.if_else(pa.array(is_known), joined(f",{json.dumps(key)}:", texts), "")


def quoted(key: str, names: pd.Categorical) -> pa.Array:
    """Return ``,"key":"name"`` for each row; nothing where there is no name."""
    words = [str(name) for name in names.categories]
    texts = [f",{json.dumps(key)}:{as_json(word)}" if word else "" for word in words]
    return _taken(texts, names)


def names_as_json(names: pd.Categorical, nothing: str = '""') -> pa.Array:
    """Return the name of each row in quotation marks."""
    return _taken([as_json(str(name)) for name in names.categories], names, nothing)


def as_json(text: str) -> str:
    """Return a text as JSON, without what a terminal would obey."""
    return visible_text(json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False))


def _taken(texts: list[str], names: pd.Categorical, nothing: str = "") -> pa.Array:
    codes = np.asarray(names.codes, np.int64)
    return pa.array([*texts, nothing], pa.string()).take(pa.array(codes % (len(texts) + 1)))
