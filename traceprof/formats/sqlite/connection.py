"""A connection to a file that is only ever read."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

__all__ = ["Connection"]

_AT_ONCE: Final = 64


class Connection:
    """A connection whose statements threads make in turn; ``uri`` as sqlite3 has it.

    Raises:
        sqlite3.Error: here and in every method, where SQLite cannot.
    """

    def __init__(self, uri: str, text_factory: Callable[[bytes], Any]) -> None:
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._connection.text_factory = text_factory

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with self._lock:
            return self._connection.execute(sql, parameters).fetchall()

    def some_rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement: who has enough of them lets no more be found."""
        with self._lock:
            cursor = self._connection.execute(sql)
        try:
            while True:
                with self._lock:
                    found = cursor.fetchmany(_AT_ONCE)
                if not found:
                    return
                yield from found
        finally:
            with self._lock:
                cursor.close()
