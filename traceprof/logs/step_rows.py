"""Read the rows of tables that programs write during training, without their meaning.

The rows come from JSON, from JSON lines, and from columns of text that spaces or tabs separate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from traceprof.logs.lines import seconds_of
from traceprof.logs.source import number

_SPACES: Final = re.compile(r"\s+")
_WIDE_SPACES: Final = re.compile(r"\t|\s{2,}")
_MIN_COLUMNS: Final = 2
_LEN_TENSORBOARD_ROW: Final = 3


def rows_of_lines(text: str) -> list[dict[str, Any]]:
    """Return the objects of a text with one JSON object per line.

    An empty list if a line is not an object.
    """
    rows: list[dict[str, Any]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        row = _object(line)
        if row is None:
            # The last line may be truncated.
            return rows if len(rows) > 1 and text.rstrip().endswith(line.strip()) else []
        rows.append(row)
    return rows


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def rows_of_history(history: Any) -> list[dict[str, Any]]:
    """Return a row per epoch of a Keras history: a list, or an object by epoch, per metric."""
    if not isinstance(history, dict) or not history:
        return []
    lists = {
        str(name): list(values.values()) if isinstance(values, dict) else values
        for name, values in history.items()
    }
    if not all(isinstance(values, list) for values in lists.values()):
        return []
    length = max(map(len, lists.values()))
    rows = (
        {name: values[i] for name, values in lists.items() if i < len(values)}
        for i in range(length)
    )
    return [{"epoch": i, **row} for i, row in enumerate(rows)]


def rows_of_scalars(found: Sequence[Any], tag: str) -> list[dict[str, Any]]:
    """Return the rows of scalars that TensorBoard exported as JSON: time, step, and value."""
    if not all(isinstance(row, list) and len(row) == _LEN_TENSORBOARD_ROW for row in found):
        return []
    return [{"Wall time": unix_s, "Step": step, tag: value} for unix_s, step, value in found]


def columns_of_text(lines: Sequence[str]) -> tuple[list[str], list[dict[str, str]]]:
    """Return the heading and the rows of columns that spaces or tabs separate; no names if none.

    The heading is the first line, and may be a comment. Most lines are rows, with as many cells as
    the heading has names, and each column contains numbers or durations.
    """
    first, *rest = [line.strip() for line in lines if line.strip()] or [""]
    text = first.lstrip("#").strip()
    names = (_WIDE_SPACES if _WIDE_SPACES.search(text) else _SPACES).split(text)
    cells = [
        line.split("\t") if "\t" in text else line.split()
        for line in rest
        if not line.startswith("#")
    ]
    rows = [row for row in cells if len(row) == len(names)]
    is_table = len(names) >= _MIN_COLUMNS and len(rows) > len(cells) / 2
    if not is_table or not all(any(map(_is_value, column)) for column in zip(*rows, strict=True)):
        return [], []
    return names, [dict(zip(names, row, strict=True)) for row in rows]


def _is_value(cell: str) -> bool:
    return number(cell) is not None or seconds_of(cell) is not None
