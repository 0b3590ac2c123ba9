"""Bytes that are no text, where SQLite itself tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traceprof.errors import TraceError

__all__ = ["telling_of_no_text"]


@contextmanager
def telling_of_no_text(path: Path) -> Iterator[None]:
    """Say that the file ``path`` is damaged where a name in it is no UTF-8.

    Where such a name is in a message of SQLite, Python cannot even make the error of it.

    Raises:
        TraceError: it is.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: damaged (a name in it is no UTF-8)") from error
