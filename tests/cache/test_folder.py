"""Where the cache lies: by the platform's conventions, as the user says, or nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceprof.cache.entries import VARIABLE, cache_folder


@pytest.mark.parametrize(
    ("platform", "said", "expected"),
    [
        ("linux", {}, "/home/me/.cache/traceprof/kept"),
        ("linux", {"XDG_CACHE_HOME": "/fast"}, "/fast/traceprof/kept"),
        ("linux", {"XDG_CACHE_HOME": "fast"}, "/home/me/.cache/traceprof/kept"),
        ("darwin", {}, "/home/me/Library/Caches/traceprof/kept"),
        ("win32", {"LOCALAPPDATA": "/app"}, "/app/traceprof/Cache"),
        ("win32", {}, "/home/me/AppData/Local/traceprof/Cache"),
        ("linux", {VARIABLE: "/scratch/me"}, "/scratch/me/traceprof"),
        ("linux", {VARIABLE: ""}, "/home/me/.cache/traceprof/kept"),
    ],
)
def test_the_users_cache_folder(platform: str, said: dict[str, str], expected: str) -> None:
    assert cache_folder({"HOME": "/home/me", **said}, platform) == Path(expected)


@pytest.mark.parametrize("said", ["0", "off", "No", " false "])
def test_it_can_be_off(said: str) -> None:
    assert cache_folder({"HOME": "/home/me", VARIABLE: said}) is None


def test_without_a_home_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder({}, "linux") is None
