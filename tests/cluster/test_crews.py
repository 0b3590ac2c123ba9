from pathlib import Path

import pytest

from traceprof.cluster import crews
from traceprof.cluster.crews import crew_for
from traceprof.cluster.pool import Pool


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(b"0123456789")
    return paths


def test_small_runs_are_looked_at_here(files: list[Path]) -> None:
    assert crew_for(files, None, "") is None
    assert crew_for(files, 1, "") is None


def test_runs_that_do_not_fit_are_looked_at_by_one_that_lays_ranks_down(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews, "_crews", {})
    monkeypatch.setattr(crews, "usable_bytes", lambda n_processes: 79 // n_processes)
    crew = crew_for(files, 1, "")
    assert isinstance(crew, Pool)
    assert crew._n_processes == 1
    assert crew_for(files[:1], 1, "") is None
    monkeypatch.setattr(crews, "usable_bytes", lambda n_processes: 81 // n_processes)
    assert crew_for(files, 1, "") is None


def test_large_runs_are_shared_out(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "_WORTH_BYTES", 20)
    monkeypatch.setattr(crews, "n_processors", lambda: 8)
    monkeypatch.setattr(crews, "_crews", {})
    assert crew_for(files[:1], None, "") is None
    crew = crew_for(files, None, "")
    assert isinstance(crew, Pool)
    assert crew._n_processes == 2
    assert crew_for(files, 2, "") is crew
    crews.dismiss()
    assert crew_for(files, 2, "") is not crew
