"""No number of any analysis on any shared trace changes unless somebody means it to."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import real_traces
from tests.golden.numbers import FILE, numbers_of
from tests.requirements import require
from traceprof import processes
from traceprof.measures import analyses


def differences(old: Any, new: Any, where: str) -> Iterator[str]:
    """Yield what was there and is not the same, with its place; what is added is no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old):
            if key in new:
                yield from differences(old[key], new[key], f"{where} {key}")
            else:
                yield f"{where} {key}: is not there any more (was {old[key]})"
    elif old != new:
        yield f"{where}: {new} (was {old})"


def additions(old: Any, new: Any, where: str) -> Iterator[str]:
    """Yield the places of what was not there: an analysis, a table, a column, a scalar."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(new):
            if key in old:
                yield from additions(old[key], new[key], f"{where} {key}")
            else:
                yield f"{where} {key}"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(FILE.read_bytes())))


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure side by side, as large traces are; the numbers were written one by one."""
    monkeypatch.setattr(analyses, "_MIN_ROWS_FOR_THREADS", 0)
    monkeypatch.setattr(processes, "n_processors", lambda: 2)


@pytest.mark.traces
@pytest.mark.filterwarnings("default::UserWarning")  # listed at the end of the run
@pytest.mark.parametrize("name", real_traces.ALL)
def test_every_number_is_what_it_was(name: str, golden: dict[str, Any]) -> None:
    folder = Path(require("traces"))
    numbers = numbers_of(folder / name)
    added = list(additions(golden[name], numbers, ""))
    if added:
        warnings.warn(f"{name}: new: {added}", stacklevel=1)
    found = list(differences(golden[name], numbers, ""))
    assert not found, "\n".join(found[:40])


def test_what_is_added_is_listed_and_what_goes_or_changes_fails() -> None:
    old = {"kernels": {"kernels": {"total_ns": "3 sum 9"}}}
    new = {"kernels": {"kernels": {"total_ns": "3 sum 9", "mean_ns": "3 sum 3"}}, "fresh": {}}
    assert list(differences(old, new, "")) == []
    assert list(additions(old, new, "")) == [" fresh", " kernels kernels mean_ns"]
    assert list(differences(new, old, "")) == [
        " fresh: is not there any more (was {})",
        " kernels kernels mean_ns: is not there any more (was 3 sum 3)",
    ]
    changed = {"kernels": {"kernels": {"total_ns": "3 sum 8"}}}
    assert list(differences(old, changed, "")) == [
        " kernels kernels total_ns: 3 sum 8 (was 3 sum 9)"
    ]
