"""Rows of a block by the names of their columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.pages.block import Block
from traceprof.formats.sqlite.pages.layout import Layout
from traceprof.formats.sqlite.pages.texts import Texts, texts_of
from traceprof.formats.sqlite.pages.words import containing, starting
from traceprof.values import dataclass

__all__ = ["BlockRows"]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of a block; of those that SQLite has to read every value is NULL."""

    block: Block
    layout: Layout

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers, with `NULL`."""
        if name == self.layout.alias:
            return self.block.row_ids()
        return self.block.integers(self.layout.places[name])

    def reals(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column as reals, with NaN for NULL."""
        return self.block.reals(self.layout.places[name])

    def texts(self, name: str) -> Texts:
        """Return a column of texts."""
        return texts_of(self.block, self.layout.places[name])

    def contains(self, name: str, words: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Return in which rows a text contains one of these words, as LIKE finds them."""
        return containing(self.block.data, *self.block.spans(self.layout.places[name]), words)

    def starts_with(self, name: str, prefixes: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Return in which rows a text starts with one of these."""
        return starting(self.block.data, *self.block.spans(self.layout.places[name]), prefixes)

    def certain(self, name: str) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers in which `NULL` stands for nothing but NULL.

        Raises:
            NotPlainError: it is a value, too.
        """
        if name == self.layout.alias:
            return self.block.row_ids()
        return self.block.certain(self.layout.places[name])
