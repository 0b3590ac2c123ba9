"""What stands for the content of a file, and for the code."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from traceprof.cache import identity
from traceprof.cache.identity import digest, identify_code, identify_file, is_settled

LARGE = 5 << 20
LONG_AGO_NS = 1_700_000_000_000_000_000


def put(path: Path, content: bytes) -> Path:
    """Write ``content``, always with the same time of change."""
    path.write_bytes(content)
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


@pytest.mark.parametrize("place", [0, 1, 99_999])
def test_every_byte_of_a_small_file_counts(tmp_path: Path, place: int) -> None:
    content = bytearray(100_000)
    before = identify_file(put(tmp_path / "a", bytes(content)))
    assert identify_file(tmp_path / "a") == before
    content[place] = 1
    assert identify_file(put(tmp_path / "a", bytes(content))) != before


@pytest.mark.parametrize("place", [0, 24, 60_000, LARGE // 63 // 4096 * 4096, LARGE - 1])
def test_of_a_large_file_the_header_pages_and_the_end_count(tmp_path: Path, place: int) -> None:
    content = bytearray(LARGE)
    before = identify_file(put(tmp_path / "a", bytes(content)))
    content[place] = 1
    assert identify_file(put(tmp_path / "a", bytes(content))) != before


def test_a_file_in_the_place_of_another_counts(tmp_path: Path) -> None:
    """Of the same size, time and samples: only what lies between these is another."""
    path, content = put(tmp_path / "a", bytes(LARGE)), bytearray(LARGE)
    before = identify_file(path)
    content[100_001] = 1
    put(tmp_path / "b", bytes(content)).replace(path)
    assert identify_file(path) != before


def test_so_does_one_that_is_edited_in_place_and_has_its_time_put_back(tmp_path: Path) -> None:
    path, content = put(tmp_path / "a", bytes(LARGE)), bytearray(LARGE)
    before, told = identify_file(path), path.stat()
    content[100_001] = 1
    put(path, bytes(content))
    again = path.stat()
    assert (again.st_mtime_ns, again.st_ino) == (told.st_mtime_ns, told.st_ino)
    # The clock of some file systems ticks too slowly to tell two changes of one moment.
    assert identify_file(path) != before or again.st_ctime_ns == told.st_ctime_ns
    assert not is_settled([path])


def test_size_and_time_count(tmp_path: Path) -> None:
    path = put(tmp_path / "a", bytes(LARGE))
    before = identify_file(path)
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS + 1))
    assert identify_file(path) != before
    assert identify_file(put(path, bytes(LARGE + 1))) != before


def test_what_sqlite_has_not_yet_written_into_the_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = wal")
    database.execute("CREATE TABLE t (x)")
    database.commit()
    before = identify_file(path)
    database.execute("INSERT INTO t VALUES (1)")
    database.commit()
    assert identify_file(path) != before
    database.close()


def test_a_file_that_was_just_changed_is_not_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(tmp_path / "old", b"x")
    new = tmp_path / "new"
    new.write_bytes(b"x")
    ahead_ns = time.time_ns() + 3_600_000_000_000
    os.utime(new, ns=(ahead_ns, ahead_ns))
    assert not is_settled([old])  # as the system says
    monkeypatch.setattr(identity, "changed_ns", lambda told: told.st_mtime_ns)
    assert is_settled([old])
    assert not is_settled([old, new])


def test_parts_are_kept_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", "") != digest("a")
    assert digest("a") == digest(b"a")


def test_other_code_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identify_code()
    identify_code.cache_clear()
    assert identify_code() == before
    monkeypatch.setattr(identity, "__version__", "0.0.0.other")
    identify_code.cache_clear()
    assert identify_code() != before
    identify_code.cache_clear()
