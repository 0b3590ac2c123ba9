"""Where the database lies: as the user says, else by the platform's conventions."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceprof.store import VARIABLE, Store, default_path


@pytest.mark.parametrize(
    ("platform", "said", "expected"),
    [
        ("linux", {}, "/home/me/.local/share/traceprof/runs.db"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/traceprof/runs.db"),
        ("linux", {"XDG_DATA_HOME": "data"}, "/home/me/.local/share/traceprof/runs.db"),
        ("darwin", {}, "/home/me/Library/Application Support/traceprof/runs.db"),
        ("win32", {"LOCALAPPDATA": "/app"}, "/app/traceprof/runs.db"),
        ("win32", {}, "/home/me/AppData/Local/traceprof/runs.db"),
        ("linux", {VARIABLE: "/a/b.db", "XDG_DATA_HOME": "/data"}, "/a/b.db"),
    ],
)
def test_the_users_folder_of_data(platform: str, said: dict[str, str], expected: str) -> None:
    assert default_path({"HOME": "/home/me", **said}, platform) == Path(expected)


def test_what_is_said_comes_before_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a.db"))
    assert Store.at().path == tmp_path / "a.db"
    assert Store.at(tmp_path / "b.db").path == tmp_path / "b.db"
