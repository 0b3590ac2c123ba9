"""Pages decoded in bulk, against what sqlite3 says is in them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.formats.sqlite.random_tables import (
    READ_AS,
    INTEGER,
    TEXT,
    by_pages,
    by_sqlite3,
    same,
    write,
)
from traceprof.formats.sqlite.conditions import AllOf, Among, AnyOf, Between, Contains, Differs
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages import table as module


@pytest.mark.parametrize("seed", range(60))
def test_random_tables(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(module, "_BLOCK_BYTES", chance.choice([1, 20_000, 2 << 20]))
    tables = write(tmp_path / "a.sqlite", seed)
    with Database(tmp_path / "a.sqlite") as database:
        for table, kinds in tables.items():
            wanted = {
                name: READ_AS[kind]
                for name, kind in kinds.items()
                if kind in READ_AS and chance.random() < 0.7
            }
            found = by_pages(database, table, wanted) if wanted else None
            if found is not None:
                expected = by_sqlite3(tmp_path / "a.sqlite", table, wanted)
                assert expected is not None
                assert same(found, expected)
