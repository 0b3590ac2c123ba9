"""The rows in some leaves, decoded by ``pages.c``, where it was compiled.

Where it was not, `vectors` does the same, three to ten times as slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.compiled.library import address, addresses, loaded
from traceprof.formats.sqlite.columns import ColumnType
from traceprof.formats.sqlite.pages.block import LEAST_CELL, Decode, has_rows
from traceprof.formats.sqlite.pages.file import PADDING, NotPlainError, PageFile
from traceprof.formats.sqlite.pages.layout import Layout
from traceprof.formats.sqlite.pages.tree import Leaves
from traceprof.values import dataclass

__all__ = ["CompiledBlock", "decoder_of", "owners"]

_KINDS: Final = {ColumnType.INTEGER: 0, ColumnType.REAL: 1, ColumnType.TEXT: 2}
_FAULTS: Final = {
    -1: "a damaged page or row",
    -2: "row ids that are out of order",
    -3: "row ids that are negative or huge",
    -4: "the file ends early",
}
_PAGES_AT_ONCE: Final = 16
_MOST_OWNERS: Final = 64


@dataclass(frozen=True)
class CompiledBlock:
    """Rows in their order; of each column that was wanted a value a row, by its place.

    Of texts ``values`` are where they start in ``data``, and ``lengths`` are in bytes.
    """

    data: npt.NDArray[np.uint8]
    n_rows: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    odd: npt.NDArray[np.int64]
    values: Mapping[int, npt.NDArray[np.int64]]
    lengths: Mapping[int, npt.NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, rows: npt.NDArray[np.int64]) -> CompiledBlock:
        """Return some of the rows; of leaves it tells no more."""
        return CompiledBlock(
            self.data,
            self.n_rows,
            self.ids[rows],
            np.flatnonzero(np.isin(rows, self.odd)),
            {place: values[rows] for place, values in self.values.items()},
            {place: lengths[rows] for place, lengths in self.lengths.items()},
        )

    def row_ids(self) -> npt.NDArray[np.int64]:
        """Return the row ids."""
        return self.ids

    def check_row_ids(self) -> None:
        """Do nothing: each was held against the one before and against the tree."""

    def integers(self, place: int) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers, with `NULL`."""
        return self.values[place]

    def certain(self, place: int) -> npt.NDArray[np.int64]:
        """Return the same: rows with the number that stands for NULL are odd."""
        return self.values[place]

    def reals(self, place: int) -> npt.NDArray[np.float64]:
        """Return a column of numbers as reals, with NaN for NULL."""
        return self.values[place].view(np.float64)

    def spans(self, place: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where the texts of a column start in ``data``, and how many bytes they have."""
        return self.values[place], self.lengths[place]


def decoder_of(file: PageFile, layout: Layout, kinds: Mapping[str, ColumnType]) -> Decode:
    """Return what decodes leaves of a table of which these columns are wanted."""
    wanted = {layout.places[name]: kind for name, kind in kinds.items() if name != layout.alias}
    places = sorted(wanted)
    n_columns = max(places, default=-1) + 1
    slots = np.full(n_columns + 1, -1, np.int16)
    slots[places] = np.arange(len(places))
    kind_of = np.array([_KINDS[wanted[place]] for place in places], np.int8)
    texts = [place for place in places if wanted[place] is ColumnType.TEXT]
    buffer = np.zeros(0, np.uint8)
    decode_pages = loaded().traceprof_decode

    def decode(leaves: Leaves) -> CompiledBlock:
        nonlocal buffer
        file.check_numbers(leaves.pages)
        n_kept = len(leaves) if texts else _PAGES_AT_ONCE
        if len(buffer) < n_kept * file.page_bytes + PADDING:
            buffer = np.zeros(n_kept * file.page_bytes + PADDING, np.uint8)
        room = _most_rows(leaves, file.page_bytes)
        values = {place: np.empty(room, np.int64) for place in places}
        lengths = {place: np.empty(room, np.int64) for place in texts}
        ids, is_odd = np.empty(room, np.int64), np.empty(room, np.bool_)
        n_rows = np.zeros(len(leaves), np.int64)
        told = [np.ascontiguousarray(one) for one in (leaves.pages, leaves.lows, leaves.highs)]
        pages, lows, highs = map(address, told)
        n = decode_pages(
            *(file.descriptor, pages, len(leaves), file.page_bytes, lows, highs),
            *(address(buffer), n_kept, n_columns, address(slots)),
            *(len(places), address(kind_of), addresses([values[place] for place in places])),
            addresses([lengths.get(place) for place in places]),
            *(address(ids), address(is_odd), room, address(n_rows)),
        )
        if n < 0:
            raise NotPlainError(_FAULTS[n])
        has_rows(n_rows, leaves)
        return CompiledBlock(
            buffer,
            n_rows,
            ids[:n],
            np.flatnonzero(is_odd[:n]),
            {place: column[:n] for place, column in values.items()},
            {place: column[:n] for place, column in lengths.items()},
        )

    return decode


def owners(
    numbers: npt.NDArray[np.int64], bits: int, devices: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Return the first row of each owner, and how many rows each has; None where they are many.

    An owner is a number without its lowest ``bits`` and, where there are devices, a device.
    """
    firsts, counts = np.empty(_MOST_OWNERS, np.int64), np.empty(_MOST_OWNERS, np.int64)
    numbers = np.ascontiguousarray(numbers)
    devices = None if devices is None else np.ascontiguousarray(devices)
    n = loaded().traceprof_owners(
        *(len(numbers), address(numbers), bits, address(devices)),
        *(_MOST_OWNERS, address(firsts), address(counts)),
    )
    return None if n < 0 else (firsts[:n], counts[:n])


def _most_rows(leaves: Leaves, page_bytes: int) -> int:
    """Return how many rows the leaves can have: as many as there are row ids and places."""
    places = (page_bytes - 8) // (2 + LEAST_CELL)
    n_ids = leaves.highs.astype(np.float64) - leaves.lows  # the first and the last are unbounded
    return int(np.minimum(n_ids, places).sum())
