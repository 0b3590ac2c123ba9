"""Files: written wholly or not at all, and never over what somebody did not mean; TOML read.

A file is written under a random name beside its place, opened exclusively, so that two writers
never share it and no link laid there beforehand is followed; then it is moved to its place at
once. It is on the disk before it gets its name.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from traceprof.errors import UsageError, WritingError

_NO_FOLLOW_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


_LARGE_BYTES: Final = 50_000_000
_SPECIAL_FILES: Final = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_OUTPUT_SUFFIXES: Final = frozenset({".html", ".png", ".svg", ".md", ".csv", ".txt"})
"""What commands write and none reads: it may be written anew, in a folder that is read, too."""


def is_there(name: str) -> bool:
    """Return whether ``name`` is a file or folder: a text that is too long for a name is none."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def are_large_files(words: Iterable[Path | str]) -> bool:
    """Return whether each of the words is a file, and one of them one of 50 MB or more."""
    with suppress(OSError, ValueError):
        found = [Path(word).stat() for word in words]
        are_files = all(stat.S_ISREG(status.st_mode) for status in found)
        return are_files and any(status.st_size >= _LARGE_BYTES for status in found)
    return False


def kind_of_no_file(path: Path) -> str:
    """Return what ``path`` is if reading it may never end ("a named pipe"); else ""."""
    with suppress(OSError):
        mode = path.stat().st_mode
        return next((kind for is_kind, kind in _SPECIAL_FILES if is_kind(mode)), "")
    return ""


def check_target(path: Path, *, force: bool, inputs: Iterable[Path | str] = ()) -> None:
    """Check that a file may be written to ``path``, before anything is computed for it.

    ``inputs`` are files, and folders of files, that are read: these are never replaced.

    Raises:
        UsageError: something is there and ``force`` is off; what is there is no regular file, or
            one of the ``inputs``; the folder is missing.
    """
    if os.path.lexists(path):
        if not force:
            raise UsageError(f"{path} exists; choose another name or use --force")
        _check_replaceable(path)
        for source in inputs:
            if _is_input(path, Path(source)):
                raise UsageError(f"{path} is an input file; choose another name")
    if not _folder(path).is_dir():
        raise UsageError(f"{_folder(path)}: no such folder; create it first")


@contextmanager
def new_file(
    path: Path, *, force: bool, inputs: Iterable[Path | str] = (), is_lasting: bool = True
) -> Iterator[Path]:
    """Give the name of an empty file beside ``path``; it becomes ``path`` if all goes well.

    One that is not ``is_lasting`` can be made again: nobody waits until the disk has it.

    A file that is replaced leaves its mode to the new one. A link is replaced itself, not what it
    leads to. Who removes the temporary file gives up: ``path`` stays as it is.

    Raises:
        UsageError: as `check_target`, or the file cannot be written.
    """
    check_target(path, force=force, inputs=inputs)
    try:
        temporary = _temporary_path(path)
        try:
            _make(temporary, path)
            yield temporary
            if temporary.exists():
                _publish(temporary, path, force=force, is_lasting=is_lasting)
        finally:
            _remove(temporary)
    except OSError as error:
        raise WritingError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder beside ``path``; it becomes ``path`` if all goes well.

    Raises:
        UsageError: something is there that is no empty folder, or it cannot be written.
    """
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(
            f"{path} exists, and traceprof never replaces a folder; choose another name"
        )
    if not _folder(path).is_dir():
        raise UsageError(f"{_folder(path)}: no such folder; create it first")
    try:
        temporary = _temporary_path(path)
        try:
            temporary.mkdir()
            yield temporary
            for created in sorted(temporary.rglob("*"), reverse=True):  # what is inside comes first
                _sync(created)
            _sync(temporary)
            temporary.replace(path)
            _sync(_folder(path))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise WritingError(f"cannot write {path}: {error.strerror or error}") from error


def write_file(
    path: Path,
    content: str | bytes,
    *,
    force: bool,
    inputs: Iterable[Path | str] = (),
    is_lasting: bool = True,
    mode: int | None = None,
) -> None:
    """Write ``content`` to ``path``, text as UTF-8; with ``mode`` the file has that one.

    Raises:
        UsageError: as `check_target`, or the file cannot be written.
    """
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    with new_file(path, force=force, inputs=inputs, is_lasting=is_lasting) as temporary:
        if mode is not None:
            temporary.chmod(mode)
        temporary.write_bytes(data)


def _folder(path: Path) -> Path:
    return path.absolute().parent


def _check_replaceable(path: Path) -> None:
    # What a link leads to counts, too: who names one of a device means the device.
    for mode in (path.lstat().st_mode, _mode_behind(path)):
        if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise UsageError(f"{path} is not a regular file; --force replaces only regular files")


def _mode_behind(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except OSError:
        return None


def _is_input(path: Path, source: Path) -> bool:
    """Return whether ``path`` is the file ``read``, or one of a folder of traces."""
    try:
        if source.is_dir():
            inside = (
                file for file in source.iterdir() if file.suffix.lower() not in _OUTPUT_SUFFIXES
            )
            return any(file.is_file() and path.samefile(file) for file in inside)
        return path.samefile(source)
    except OSError:
        return False


def _temporary_path(path: Path) -> Path:
    """Return a name beside ``path`` that nobody can know; its length is its own."""
    return _folder(path) / f".traceprof-{os.urandom(16).hex()}.part"


def _make(temporary: Path, path: Path) -> None:
    """Make an empty file, with the mode of the one that it replaces."""
    mode = _mode_behind(path)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _NO_FOLLOW_FLAGS
    os.close(os.open(temporary, flags, 0o666))
    if mode is not None and path.is_file():
        temporary.chmod(stat.S_IMODE(mode))


def _remove(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except KeyboardInterrupt:  # that comes just now
        temporary.unlink(missing_ok=True)
        raise


def _publish(temporary: Path, path: Path, *, force: bool, is_lasting: bool) -> None:
    """Give the finished file its name; without ``force`` never one that is taken meanwhile."""
    if is_lasting:
        _sync(temporary)
    if force:
        if os.path.lexists(path):
            _check_replaceable(path)
        temporary.replace(path)
    else:
        _take_name(temporary, path)
    if is_lasting:
        _sync(_folder(path))


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder: after that power may fail."""
    if not path.is_dir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    elif os.name == "posix":
        folder = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError):  # of a file system that cannot
                os.fsync(folder)
        finally:
            os.close(folder)


def _take_name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise UsageError(f"{path} exists; choose another name or use --force") from error
    except OSError:
        # A file system without hard links: the moment between the look and the move stays open.
        if os.path.lexists(path):
            raise UsageError(f"{path} exists; choose another name or use --force") from None
        temporary.rename(path)


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Return the TOML document ``text``; ``what`` it is begins the message.

    Raises:
        UsageError: it is not TOML, or nested too deeply, or holds a number of thousands of digits.
    """
    import tomllib  # noqa: PLC0415 (most commands read no such file)

    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"{what}: invalid TOML: nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{what}: invalid TOML: {error}") from error
