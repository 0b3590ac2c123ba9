"""Entries: checked, private, bounded, written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import ROOT
from traceprof.cache.entries import Cache, Usage
from traceprof.cache.identity import digest

A, B, C = digest("a"), digest("b"), digest("c")
LONG_AGO_S = 1_700_000_000

is_posix = pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "kept")


def entry(cache: Cache, key: str) -> Path:
    return cache.folder / f"{key}.entry"


@is_posix
def test_a_named_pipe_in_the_place_of_an_entry_is_none(cache: Cache) -> None:
    cache.put({A: b"one"})
    entry(cache, A).unlink()
    os.mkfifo(entry(cache, A))
    assert cache.get(A) is None


def test_what_was_kept_is_found(cache: Cache) -> None:
    assert cache.get(A) is None
    cache.put({A: b"one", B: b""})
    assert (cache.get(A), cache.get(B), cache.get(C)) == (b"one", b"", None)
    cache.put({A: b"two"})
    assert cache.get(A) == b"two"


@pytest.mark.parametrize("place", [0, 20, 55, -1])
def test_a_damaged_entry_is_as_if_it_were_not_there(cache: Cache, place: int) -> None:
    cache.put({A: b"something"})
    content = bytearray(entry(cache, A).read_bytes())
    content[place] ^= 1
    entry(cache, A).write_bytes(bytes(content))
    assert cache.get(A) is None
    assert not entry(cache, A).exists()


@pytest.mark.parametrize("kept", [0, 10, 40, 55])
def test_an_entry_that_was_cut_off_is_not_there(cache: Cache, kept: int) -> None:
    cache.put({A: b"something"})
    entry(cache, A).write_bytes(entry(cache, A).read_bytes()[:kept])
    assert cache.get(A) is None


def test_an_entry_under_another_name_is_not_believed(cache: Cache) -> None:
    cache.put({A: b"something"})
    entry(cache, A).rename(entry(cache, B))
    assert cache.get(B) is None


@is_posix
def test_files_and_folder_are_private(cache: Cache, tmp_path: Path) -> None:
    source = tmp_path / "export"
    source.write_bytes(b"rows")
    cache.put({A: b"x"})
    cache.put_file(B, source)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in cache.folder.iterdir()} == {0o600}


@is_posix
def test_where_others_may_write_nothing_is_believed_or_kept(cache: Cache) -> None:
    cache.put({A: b"x"})
    entry(cache, A).chmod(0o620)
    assert cache.get(A) is None
    entry(cache, A).chmod(0o600)
    assert cache.get(A) == b"x"
    cache.folder.chmod(0o777)
    assert cache.get(A) is None
    cache.put({B: b"x"})
    assert not entry(cache, B).exists()
    assert not cache.is_writable()


@is_posix
def test_a_link_is_not_followed(cache: Cache, tmp_path: Path) -> None:
    cache.put({A: b"x"})
    moved = entry(cache, A).rename(tmp_path / "elsewhere")
    entry(cache, A).symlink_to(moved)
    assert cache.get(A) is None
    cache.put({A: b"y"})
    assert cache.get(A) == b"y"
    assert moved.read_bytes().endswith(b"x")


def test_what_was_used_the_longest_ago_goes_first(cache: Cache) -> None:
    small = Cache(cache.folder, largest_bytes=3_000)
    for age, key in enumerate((C, B, A)):
        small.put({key: bytes(900)})
        os.utime(entry(small, key), (LONG_AGO_S + age, LONG_AGO_S + age))
    assert small.get(C) is not None  # and is used now
    small.put({digest("d"): bytes(900)})
    assert small.get(B) is None
    assert small.get(A) is not None
    assert small.usage().total_bytes <= 3_000


def test_what_is_too_large_is_not_kept(cache: Cache, tmp_path: Path) -> None:
    small = Cache(cache.folder, largest_bytes=1_000)
    source = tmp_path / "export"
    source.write_bytes(bytes(600))
    small.put({A: bytes(501)})
    small.put_file(B, source)
    assert small.usage() == Usage(0, 0)


def test_a_file_is_kept_and_stays_while_it_is_used(cache: Cache, tmp_path: Path) -> None:
    source = tmp_path / "export"
    source.write_bytes(b"rows")
    cache.put_file(A, source)
    source.unlink()
    with cache.file(A) as found:
        assert found is not None
        cache.clear()
        assert found.read_bytes() == b"rows"
    with cache.file(A) as found:
        assert found is None
    assert list(cache.folder.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"row", b"rowz", b"rows and more"])
def test_a_damaged_file_is_not_there(cache: Cache, tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "export"
    source.write_bytes(b"rows")
    cache.put_file(A, source)
    (cache.folder / f"{A}.file").write_bytes(content)
    with cache.file(A) as found:
        assert found is None
    assert [path.suffix for path in cache.folder.iterdir()] == [".entry"]


def test_clearing_leaves_what_is_not_ours(cache: Cache) -> None:
    cache.put({A: b"x", B: b"y"})
    (cache.folder / "notes.entry").write_text("mine")
    half = cache.folder / ".traceprof-0123456789abcdef.part"
    half.write_bytes(b"being written")
    assert cache.clear().entry_count == 2
    assert {path.name for path in cache.folder.iterdir()} == {"notes.entry", half.name}
    os.utime(half, (LONG_AGO_S, LONG_AGO_S))
    cache.put({A: b"x"})
    assert not half.exists(), "left by a process that died"


def test_a_full_disk_costs_no_result(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache.put({A: b"before"})
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr("shutil.copyfile", full)
    cache.put({A: b"after", B: b"x"})
    cache.put_file(C, cache.folder)
    assert (cache.get(A), cache.get(B)) == (b"before", None)
    assert [path.name for path in cache.folder.iterdir()] == [entry(cache, A).name]


def test_where_no_folder_can_be_made_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "kept")
    cache.put({A: b"x"})
    assert cache.get(A) is None
    assert not cache.is_writable()
    assert cache.usage() == cache.clear() == Usage(0, 0)


def test_two_writers_at_once_leave_a_whole_entry(cache: Cache) -> None:
    contents = [bytes([number]) * 200_000 for number in range(4)]
    threads = [
        threading.Thread(target=lambda own=own: [cache.put({A: own}) for _ in range(10)])
        for own in contents
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert cache.get(A) in (None, *contents)
    assert cache.get(A) in contents
    assert [path.name for path in cache.folder.iterdir()] == [entry(cache, A).name]


def test_two_processes_at_once(cache: Cache) -> None:
    program = (
        "import sys; from pathlib import Path; from traceprof.cache.entries import Cache\n"
        "cache = Cache(Path(sys.argv[1]))\n"
        f"for n in range(50): cache.put({{{A!r}: sys.argv[2].encode() * 10_000}})"
    )
    command = [sys.executable, "-c", program, str(cache.folder)]
    writers = [subprocess.Popen([*command, word], cwd=ROOT) for word in ("one", "two")]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert cache.get(A) in (b"one" * 10_000, b"two" * 10_000)
