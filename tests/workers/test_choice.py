from pathlib import Path

import pytest

from traceprof.workers import choice
from traceprof.workers.choice import pool_for
from traceprof.workers.pool import ProcessPool


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(b"0123456789")
    return paths


def test_small_runs_are_looked_at_here(files: list[Path]) -> None:
    assert pool_for(files, None, "") is None
    assert pool_for(files, 1, "") is None


def test_runs_that_do_not_fit_are_looked_at_by_one_that_lays_ranks_down(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_pools", {})
    monkeypatch.setattr(choice, "usable_bytes", lambda n_processes: 79 // n_processes)
    pool = pool_for(files, 1, "")
    assert isinstance(pool, ProcessPool)
    assert pool.n_workers == 1
    assert pool_for(files[:1], 1, "") is None
    monkeypatch.setattr(choice, "usable_bytes", lambda n_processes: 81 // n_processes)
    assert pool_for(files, 1, "") is None


def test_large_runs_are_shared_out(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_MIN_POOL_BYTES", 20)
    monkeypatch.setattr(choice, "_MIN_POOL_BYTES_PER_FILE", 10)
    monkeypatch.setattr(choice, "n_processors", lambda: 8)
    monkeypatch.setattr(choice, "_pools", {})
    assert pool_for(files[:1], None, "") is None
    pool = pool_for(files, None, "")
    assert isinstance(pool, ProcessPool)
    assert pool.n_workers == 2
    assert pool_for(files, 2, "") is pool
    choice.dismiss()
    assert pool_for(files, 2, "") is not pool


def test_many_small_files_are_looked_at_here(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_MIN_POOL_BYTES", 20)
    monkeypatch.setattr(choice, "_MIN_POOL_BYTES_PER_FILE", 9)
    monkeypatch.setattr(choice, "n_processors", lambda: 8)
    monkeypatch.setattr(choice, "_pools", {})
    small = [tmp_path / f"small{number}" for number in range(20)]
    for path in small:
        path.write_bytes(b"01234567")
    assert pool_for(small, None, "") is None
    assert pool_for(files, None, "") is not None
    choice.dismiss()
