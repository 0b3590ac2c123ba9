"""Files are written wholly or not at all, and never over what somebody did not mean."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from traceprof.errors import UsageError
from traceprof.files import check_target, new_file, new_folder, write_file

posix = pytest.mark.skipif(os.name != "posix", reason="links, modes and devices of POSIX")


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with new_file(path, force=False) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.parent == tmp_path
    assert path.read_text() == "half"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
def test_what_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_file(tmp_path / "x", force=False) as temporary:
        temporary.write_text("half")
        raise error
    assert not list(tmp_path.iterdir())


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(ValueError), new_file(path, force=True):
        raise ValueError
    assert path.read_text() == "old"


def test_who_removes_the_temporary_file_gives_up(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with new_file(path, force=True) as temporary:
        temporary.unlink()
    assert path.read_text() == "old"


def test_nothing_is_replaced_without_force(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(UsageError, match="exists; choose another name or use --force"):
        write_file(path, "new", force=False)
    write_file(path, "new", force=True)
    assert path.read_text() == "new"


def test_nor_what_came_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(UsageError, match="exists"), new_file(path, force=False) as temporary:
        temporary.write_text("mine")
        path.write_text("theirs")
    assert path.read_text() == "theirs"
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def test_a_part_of_somebody_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".x.part").write_text("theirs")
    write_file(tmp_path / "x", "mine", force=False)
    assert (tmp_path / ".x.part").read_text() == "theirs"


def test_the_input_is_never_replaced(tmp_path: Path) -> None:
    trace = tmp_path / "t.sqlite"
    trace.write_text("trace")
    with pytest.raises(UsageError, match="is an input file"):
        write_file(trace, "page", force=True, inputs=[trace])
    with pytest.raises(UsageError, match="is an input file"):
        write_file(trace, "page", force=True, inputs=[tmp_path])
    assert trace.read_text() == "trace"


def test_a_page_in_a_folder_that_is_read_may_be_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "run.report.html"
    page.write_text("old")
    write_file(page, "new", force=True, inputs=[tmp_path])
    assert page.read_text() == "new"


@posix
def test_the_input_is_not_replaced_through_a_link(tmp_path: Path) -> None:
    trace, link, hard = tmp_path / "t.sqlite", tmp_path / "link", tmp_path / "hard"
    trace.write_text("trace")
    link.symlink_to(trace)
    os.link(trace, hard)
    for name in (link, hard):
        with pytest.raises(UsageError, match="is an input file"):
            write_file(name, "page", force=True, inputs=[trace])
    assert trace.read_text() == "trace"


@posix
def test_a_link_is_something_even_where_it_leads_nowhere(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="exists"):
        write_file(link, "page", force=False)
    assert link.is_symlink()


@posix
def test_with_force_a_link_is_replaced_not_what_it_leads_to(tmp_path: Path) -> None:
    link, victim = tmp_path / "link", tmp_path / "victim"
    victim.write_text("theirs")
    link.symlink_to(victim)
    write_file(link, "page", force=True)
    assert (victim.read_text(), link.read_text(), link.is_symlink()) == ("theirs", "page", False)


@posix
def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    pipe, link, folder = tmp_path / "pipe", tmp_path / "link", tmp_path / "folder"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    folder.mkdir()
    for path in (pipe, link, folder):
        with pytest.raises(UsageError, match="not a regular file"):
            write_file(path, "page", force=True)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@posix
def test_the_mode_of_what_is_replaced_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o600)
    write_file(path, "new", force=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@posix
def test_a_new_file_has_the_mode_that_the_user_wants(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "x", "new", force=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_names_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    write_file(path, "page", force=False)
    assert path.read_text() == "page"


def test_a_name_that_is_too_long_and_a_missing_folder_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        write_file(tmp_path / ("n" * 300), "page", force=False)
    with pytest.raises(UsageError, match="no such folder"):
        check_target(tmp_path / "a" / "b", force=False)


_WRITER = """
import sys
from pathlib import Path
from traceprof.files import write_file
for _ in range(60):
    write_file(Path(sys.argv[1]), sys.argv[2] * 300_000, force=True)
"""


def test_two_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("a")
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), letter]) for letter in "ab"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        seen.add(frozenset(path.read_text()))
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {frozenset("a"), frozenset("b")}
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with pytest.raises(KeyError), new_folder(target) as folder:
        (folder / "half").touch()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with new_folder(target) as folder:
        (folder / "whole").touch()
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["whole"]
    with pytest.raises(UsageError, match="traceprof never replaces a folder"), new_folder(target):
        pass
    assert [path.name for path in target.iterdir()] == ["whole"]
    with pytest.raises(UsageError, match="no such folder"), new_folder(tmp_path / "a" / "b"):
        pass


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What reaches the disk, and what gets a name, in order: what a power failure may part."""
    told: list[tuple[str, str]] = []
    fsync, link, replace = os.fsync, os.link, Path.replace

    def synced(descriptor: int) -> None:
        told.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def linked(source: Path, target: Path) -> None:
        told.append(("name", target.name))
        link(source, target)

    def replaced(source: Path, target: Path) -> Path:
        told.append(("name", target.name))
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(Path, "replace", replaced)
    return told


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="what a descriptor is of")


@on_linux
@pytest.mark.parametrize("force", [False, True])
def test_a_file_is_on_the_disk_before_its_name_and_that_before_we_go_on(
    tmp_path: Path, done: list[tuple[str, str]], force: bool
) -> None:
    path = tmp_path / "x"
    if force:
        path.write_text("old")
    write_file(path, "new", force=force)
    (first, temporary), *rest = done
    assert (first, temporary[-5:]) == ("sync", ".part")
    assert rest == [("name", "x"), ("sync", tmp_path.name)]


@on_linux
def test_what_can_be_made_again_is_not_waited_for(
    tmp_path: Path, done: list[tuple[str, str]]
) -> None:
    write_file(tmp_path / "x", "new", force=False, is_lasting=False)
    assert done == [("name", "x")]


@on_linux
def test_a_folder_is_on_the_disk_with_all_that_is_in_it(
    tmp_path: Path, done: list[tuple[str, str]]
) -> None:
    with new_folder(tmp_path / "out") as temporary:
        (temporary / "a").write_text("1")
        (temporary / "b").mkdir()
        (temporary / "b" / "c").write_text("2")
    assert [what for what, _ in done] == ["sync"] * 4 + ["name", "sync"]
    names = [name for _, name in done]
    assert names.index("c") < names.index("b")
    assert names[3].endswith(".part")
    assert names[4:] == ["out", tmp_path.name]
