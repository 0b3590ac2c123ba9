"""The labelled names of ../shared/kernels: how many are told right, and which are mistaken."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.requirements import require
from traceprof.model.activity import Activity
from traceprof.names.classes import class_of
from traceprof.names.kernels import direction_of, matrix_units_of, precision_of
from traceprof.names.messages import kernel_kind

Row = dict[str, str]


@pytest.fixture(scope="module")
def rows() -> Sequence[Row]:
    """Return the labels; they were written before classes had American names."""
    with Path(require("kernels")).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [row | {"class": row["class"].replace("normalisation", "normalization")} for row in rows]


def _comm_op(name: str) -> str:
    if class_of(name) is not Activity.COMMUNICATION:
        return ""
    # Whether the parts are even is no matter of names.
    return kernel_kind(name).op.replace("all_to_all_v", "all_to_all") or "unknown"


JUDGES: dict[str, Callable[[str], str]] = {
    "class": lambda name: class_of(name).value,
    "part": lambda name: class_of(name).part.value,
    "comm_op": _comm_op,
    "dtype": lambda name: precision_of(name) or "unknown",
    "tensor_cores": lambda name: matrix_units_of(name, class_of(name)).value,
    "direction": lambda name: direction_of(name) or "unknown",
}


@pytest.mark.parametrize(
    ("column", "least_sure", "least"),
    [
        ("class", 0.97, 0.92),
        ("part", 0.995, 0.995),
        ("comm_op", 0.99, 0.99),
        ("dtype", 0.94, 0.94),
        ("tensor_cores", 0.97, 0.97),
        ("direction", 0.96, 0.96),
    ],
)
def test_labels(rows: Sequence[Row], column: str, least_sure: float, least: float) -> None:
    judged = [(row, JUDGES[column](row["name"])) for row in rows]
    sure = [(row, found) for row, found in judged if row["confidence"] == "sure"]
    of_all, of_sure = _right(judged, column), _right(sure, column)
    said = [f"\n{column}: {of_all:.4f} of all, {of_sure:.4f} of the sure"]
    mistaken = Counter((row[column], found) for row, found in judged if row[column] != found)
    for (label, found), count in mistaken.most_common():
        said.append(f"{count:5d}  {label} is called {found}")
    for row, found in judged:
        if column == "class" and row[column] != found:
            said.append(f"  {row['confidence']:6s} {row[column]} → {found}: {row['name'][:100]}")
    sys.stdout.write("\n".join(said))
    assert of_sure >= least_sure
    assert of_all >= least


def _right(judged: Sequence[tuple[Row, str]], column: str) -> float:
    return sum(row[column] == found for row, found in judged) / len(judged)
