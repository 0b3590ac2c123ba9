"""Write flame graphs: nested boxes as wide as their time or memory, for one run or for two.

A script of the page draws the boxes. The page needs no plotly.js for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import numpy as np

from traceprof.measures.host.tree import BETWEEN
from traceprof.model.table import Table
from traceprof.render.escape import html_text, plain_text

MAX_BOXES: Final = 400
"""Boxes per measure; the page omits the smallest ones."""
_MAX_NAME_LENGTH: Final = 160


@dataclass(frozen=True, slots=True)
class FlameMeasure:
    """What the width of the boxes shows: ``column`` in ``unit`` ("ns" or "bytes").

    ``base`` is the same column of the base run; "" for a flame graph of one run.
    """

    title: str
    unit: str
    column: str
    base: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that this measure reads."""
        return (self.column, self.base) if self.base else (self.column,)


def flame_graph(table: Table, label: str, measures: Sequence[FlameMeasure], about: str) -> str:
    """Return a flame graph of the rows of ``table`` as HTML; "" if no measure has a value.

    Args:
        table: a row per path. A path holds the names from the outermost to the innermost, joined
            by `BETWEEN`; each value includes the values of the paths inside it.
        label: a description for screen readers.
        measures: what the reader can choose as the width; the first one is shown.
        about: a sentence below the graph.
    """
    sizes = {measure: _sizes(table, measure) for measure in measures}
    shown = [measure for measure in measures if sizes[measure].any()]
    if not shown:
        return ""
    table = table.take(_largest(table, [sizes[measure] for measure in shown]))
    paths = table["path"].tolist()
    places = {path: number for number, path in enumerate(paths, 1)}
    parents = [places.get(path.rpartition(BETWEEN)[0], 0) for path in paths]
    is_outer = np.array(parents) == 0

    def values(column: str) -> list[int]:
        numbers = np.nan_to_num(np.asarray(table[column], np.float64)).astype(np.int64)
        return [int(numbers[is_outer].sum()), *numbers.tolist()]

    data = {
        "names": ["all", *(plain_text(p.split(BETWEEN)[-1], _MAX_NAME_LENGTH) for p in paths)],
        "parents": [-1, *parents],
        "counts": [0, *table["count"].tolist()] if "count" in table else [0] * (len(paths) + 1),
        "measures": [
            {"title": measure.title, "unit": measure.unit, "values": values(measure.column)}
            | ({"base": values(measure.base)} if measure.base else {})
            for measure in shown
        ],
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<figure class="flame" aria-label="{html_text(label)}">'
        f'<script type="application/json">{text}</script>'
        f'<p class="note">{about}</p></figure>'
    )


def _sizes(table: Table, measure: FlameMeasure) -> Any:
    """Return the width of each row: the value, or the sum of both runs."""
    columns = [table[name] for name in measure.columns if name in table]
    return np.nan_to_num(np.sum(columns, axis=0, dtype=np.float64)) if columns else np.zeros(1)


def _largest(table: Table, sizes: Sequence[Any]) -> Any:
    """Return the rows of the largest boxes of any measure, parents before their children."""
    depth = np.array([path.count(BETWEEN) for path in table["path"].tolist()], np.int64)
    kept = [np.lexsort((depth, -size))[:MAX_BOXES] for size in sizes]
    rows = np.unique(np.concatenate(kept))
    return rows[np.argsort(depth[rows], kind="stable")]


def table_of_leaves(leaves: Iterable[tuple[Sequence[str], Mapping[str, int]]]) -> Table:
    """Return a table of paths from ``leaves``: each adds its values to all paths around it."""
    rows: dict[str, dict[str, Any]] = {}
    for names, values in leaves:
        for depth in range(1, len(names) + 1):
            path = BETWEEN.join(names[:depth])
            row = rows.setdefault(path, {"path": path})
            for column, value in values.items():
                row[column] = row.get(column, 0) + value
    return Table.of_rows(list(rows.values()))


def flame_style() -> str:
    """Return the style of flame graphs."""
    return (files(__package__) / "flame.css").read_text(encoding="utf-8")


def flame_script() -> str:
    """Return the script that draws the flame graphs of a page."""
    return (files(__package__) / "flame.js").read_text(encoding="utf-8")
