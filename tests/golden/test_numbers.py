"""No number of any analysis on any shared trace changes unless somebody means it to."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import real_traces
from tests.golden.numbers import FILE, numbers_of
from tests.requirements import require
from traceprof import threads
from traceprof.analysis import base


def differences(old: Any, new: Any, where: str) -> Iterator[str]:
    """Yield what differs, with its place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{where} {key}")
    elif old != new:
        yield f"{where}: {new} (was {old})"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(FILE.read_bytes())))


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure side by side, as large traces are; the numbers were written one by one."""
    monkeypatch.setattr(base, "_WORTH_THREADS", 0)
    monkeypatch.setattr(threads, "n_processors", lambda: 2)


@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.ALL)
def test_every_number_is_what_it_was(name: str, golden: dict[str, Any]) -> None:
    folder = Path(require("traces"))
    found = list(differences(golden[name], numbers_of(folder / name), ""))
    assert not found, "\n".join(found[:40])
