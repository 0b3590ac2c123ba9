"""A plain table of a SQLite file: its rows, block by block, on the processors that there are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from traceprof.formats.compiled import library
from traceprof.formats.sqlite.columns import ColumnType
from traceprof.formats.sqlite.pages import compiled, vectors
from traceprof.formats.sqlite.pages.block import Block, Decode
from traceprof.formats.sqlite.pages.file import Identity, PageFile, page_bytes_of
from traceprof.formats.sqlite.pages.layout import Layout
from traceprof.formats.sqlite.pages.tree import Leaves, leaves_of
from traceprof.values import dataclass

__all__ = ["PageTable"]

_BLOCK_BYTES: Final = 2 << 20
_N_THREADS: Final = 2
_PARALLEL_BLOCKS: Final = 3

T = TypeVar("T")


class _Workplace(threading.local):
    """What a thread keeps from block to block."""

    decode: Decode | None = None


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of rows with row ids.

    Args:
        path: its file.
        identity: what the file was when its schema was read.
        layout: where its columns are.
    """

    path: Path
    identity: Identity
    layout: Layout

    @property
    def page_bytes(self) -> int:
        """How many bytes a page has.

        Raises:
            NotPlainError: the file is unusual.
        """
        return page_bytes_of(self.identity)

    def leaves(self) -> Leaves:
        """Return the pages of its rows.

        Raises:
            NotPlainError: they cannot be found.
        """
        with PageFile(self.path, self.identity) as file:
            found = leaves_of(file, self.layout.root)
            file.check_unchanged()
        return found

    def map(
        self, kinds: Mapping[str, ColumnType], leaves: Leaves, made_of: Callable[[Block, int], T]
    ) -> list[T]:
        """Return what ``made_of`` makes of each block of the rows and the number of its first leaf.

        It runs in several threads, and must copy what it keeps of the bytes of a block.

        Args:
            kinds: the columns that are asked for in blocks.
            leaves: the pages with the rows.
            made_of: makes something of the rows of some of these leaves.

        Raises:
            NotPlainError: not every row can be decoded.
        """
        place = _Workplace()
        with PageFile(self.path, self.identity) as file:
            n_leaves = max(_BLOCK_BYTES // file.page_bytes, 1)
            decoder_of = compiled.decoder_of if library.is_there() else vectors.decoder_of

            def run(first: int) -> T:
                if place.decode is None:
                    place.decode = decoder_of(file, self.layout, kinds)
                return made_of(place.decode(leaves.part(first, n_leaves)), first)

            starts = range(0, len(leaves), n_leaves)
            if len(starts) < _PARALLEL_BLOCKS:
                made = [run(first) for first in starts]
            else:
                with ThreadPoolExecutor(_N_THREADS) as pool:
                    made = list(pool.map(run, starts))
            file.check_unchanged()
        return made
