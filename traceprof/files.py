"""Write files atomically, never overwrite a file by mistake, and parse TOML.

A file is written under a random temporary name in the target folder. It is opened exclusively, so
that two writers never share it and no planted link is followed. It is flushed to the disk and then
moved to its final name in one step.
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
"""Suffixes of files that commands write and never read. They may be overwritten even in an input
folder.
"""


def is_there(name: str) -> bool:
    """Return whether ``name`` is an existing file or folder; False if it is too long for a path."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def are_large_files(words: Iterable[Path | str]) -> bool:
    """Return whether all ``words`` are regular files and at least one has 50 MB or more."""
    with suppress(OSError, ValueError):
        found = [Path(word).stat() for word in words]
        are_files = all(stat.S_ISREG(status.st_mode) for status in found)
        return are_files and any(status.st_size >= _LARGE_BYTES for status in found)
    return False


def special_file_kind(path: Path) -> str:
    """Return the kind of special file at ``path`` ("a named pipe"), or "".

    Reading a special file may block forever.
    """
    with suppress(OSError):
        mode = path.stat().st_mode
        return next((kind for is_kind, kind in _SPECIAL_FILES if is_kind(mode)), "")
    return ""


def check_target(path: Path, *, force: bool, inputs: Iterable[Path | str] = ()) -> None:
    """Check that a file may be written to ``path``, before the command computes its content.

    ``inputs`` are input files and folders of input files. They are never overwritten.

    Raises:
        UsageError: the path exists and ``force`` is off, it is not a regular file, it is one of the
            ``inputs``, or its folder does not exist.
    """
    if str(path) == "-":
        raise UsageError("- is not a file name; leave out --output to write to standard output")
    if os.path.lexists(path):
        if not force:
            raise UsageError(f"{path} exists; choose another name or use --force")
        _check_replaceable(path)
        for source in inputs:
            if _is_input(path, Path(source)):
                raise UsageError(f"{path} is an input file; choose another name")
    _check_folder(_folder(path))


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        why = "not a folder" if folder.exists() else "no such folder; create it first"
        raise UsageError(f"{folder}: {why}")


_SQLITE_NAMES: Final = (".sqlite", ".sqlite3", ".db", ".nvprof")
_JSON_NAMES: Final = (".json", ".json.gz")
_OTHER_TRACES: Final = (".nsys-rep", ".qdrep", ".qdstrm", ".nvvp", ".pftrace")


def check_trace_name(path: Path, *, is_json: bool) -> None:
    """Check that the name of a trace that is written is not one of another format.

    Names without a known ending are accepted.

    Raises:
        UsageError: the name ends as traces of another format do.
    """
    others = _SQLITE_NAMES if is_json else (*_JSON_NAMES, ".gz")
    if path.name.lower().endswith((*others, *_OTHER_TRACES)):
        what, ending = ("JSON", "json or .json.gz") if is_json else ("SQLite", "sqlite")
        raise UsageError(f"{path}: the trace is written as {what}; use a name with .{ending}")


@contextmanager
def new_file(
    path: Path, *, force: bool, inputs: Iterable[Path | str] = (), is_lasting: bool = True
) -> Iterator[Path]:
    """Yield the path of an empty temporary file; on success, move it to ``path``.

    With ``is_lasting`` off, the content can be recreated, so this does not wait for the disk.

    A replaced file passes its permission mode to the new file. A link is replaced itself; its
    target stays unchanged. To give up, delete the temporary file: then ``path`` stays unchanged.

    Raises:
        UsageError: as in `check_target`.
        WritingError: the file cannot be written.
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
    """Yield an empty temporary folder; on success, move it to ``path``.

    Raises:
        UsageError: the path exists and is not an empty folder, or its parent does not exist.
        WritingError: the folder cannot be written.
    """
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(
            f"{path} exists, and traceprof never replaces a folder; choose another name"
        )
    _check_folder(_folder(path))
    try:
        temporary = _temporary_path(path)
        try:
            temporary.mkdir()
            yield temporary
            for created in sorted(temporary.rglob("*"), reverse=True):  # folder last
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
    """Write ``content`` to ``path`` atomically, text as UTF-8; ``mode`` sets the permission mode.

    Raises:
        UsageError: as in `check_target`.
        WritingError: the file cannot be written.
    """
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    with new_file(path, force=force, inputs=inputs, is_lasting=is_lasting) as temporary:
        if mode is not None:
            temporary.chmod(mode)
        temporary.write_bytes(data)


def _folder(path: Path) -> Path:
    return path.absolute().parent


def _check_replaceable(path: Path) -> None:
    # Check the target of a link, too: a link to a device means the device.
    for mode in (path.lstat().st_mode, _mode_behind(path)):
        if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise UsageError(f"{path} is not a regular file; --force replaces only regular files")


def _mode_behind(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except OSError:
        return None


def _is_input(path: Path, source: Path) -> bool:
    """Return whether ``path`` is the input file ``source``, or a trace in the folder ``source``."""
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
    """Return an unpredictable temporary path in the folder of ``path``, of fixed length."""
    return _folder(path) / f".traceprof-{os.urandom(16).hex()}.part"


def _make(temporary: Path, path: Path) -> None:
    """Create an empty file, with the permission mode of the file that it will replace."""
    mode = _mode_behind(path)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _NO_FOLLOW_FLAGS
    os.close(os.open(temporary, flags, 0o666))
    if mode is not None and path.is_file():
        temporary.chmod(stat.S_IMODE(mode))


def _remove(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except KeyboardInterrupt:  # Ctrl-C during the deletion
        temporary.unlink(missing_ok=True)
        raise


def _publish(temporary: Path, path: Path, *, force: bool, is_lasting: bool) -> None:
    """Move the finished file to its name; without ``force``, fail if the name is taken by now."""
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
    """Wait until a file, or the entries of a folder, survive a power failure."""
    if not path.is_dir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    elif os.name == "posix":
        folder = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError):  # the file system does not support it
                os.fsync(folder)
        finally:
            os.close(folder)


def _take_name(temporary: Path, path: Path) -> None:
    """Give the file its final name, without overwriting another file."""
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise UsageError(f"{path} exists; choose another name or use --force") from error
    except OSError:
        # The file system has no hard links. Another process could create the file between the
        # check and the move.
        if os.path.lexists(path):
            raise UsageError(f"{path} exists; choose another name or use --force") from None
        temporary.rename(path)


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Return the parsed TOML document ``text``; error messages start with ``what``.

    Raises:
        UsageError: the text is not valid TOML, is nested too deeply, or contains a number with
            thousands of digits.
    """
    import tomllib  # noqa: PLC0415 (most commands read no such file)

    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"{what}: invalid TOML: nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{what}: invalid TOML: {error}") from error
