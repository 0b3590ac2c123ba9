"""Compute the shown names of a page: short names, and common names of similar events.

The tables use the same rules (`traceprof.names`). They are applied here once, and the page gets the
results. The short name of a kernel contains the kernel and the operation that it applies. The short
name of a host event lacks the suffix that `emit_nvtx` adds. Names that differ only in a step number
have the same common name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.model.intervals import Int64Array
from traceprof.model.table import objects
from traceprof.names.kernels import short_name
from traceprof.names.ranges import common_categories, plain_categories
from traceprof.render.escape import plain_text
from traceprof.render.timeline.channels import Lanes, channels_by_kind

_DEVICE: Final = "gpu"
_COPY_PREFIXES: Final = ("Memcpy", "Memset")
_MAX_NAME_CHARS: Final = 300


@dataclass(frozen=True, slots=True, eq=False)
class ShownNames:
    """The shown form of each name of a page.

    ``texts`` are the shown names that differ from the names. For each name, ``short`` is 1 + the
    index of its short form in ``texts`` (0: the name itself). ``common`` is 1 + the index of the
    name that it shares with similar names (0: its short form).
    """

    texts: tuple[str, ...]
    short: Int64Array
    common: Int64Array

    @classmethod
    def of(cls, lanes: Lanes) -> ShownNames:
        """Return the shown names of exact lanes; merged events no longer have their names."""
        if not lanes.names:
            return cls((), np.zeros(0, np.int64), np.zeros(0, np.int64))
        names = objects(lanes.names)
        plain, of_plain = plain_categories(names)
        common_texts, of_common = common_categories(names)
        short, common = plain[of_plain], common_texts[of_common]
        for place in _kernel_names(lanes).tolist():
            kernel_name = plain_text(short_name(short[place]), _MAX_NAME_CHARS)
            short[place] = common[place] = kernel_name or lanes.names[place]
        texts: dict[str, int] = {}
        codes = (_code_texts(texts, short, names), _code_texts(texts, common, short))
        return cls(tuple(texts), *codes)


def _kernel_names(lanes: Lanes) -> Int64Array:
    """Return the indices of kernel names; names of copies are already short and excluded."""
    names_of_channels = [
        channel.names if channel.counts is None else channel.names[channel.counts == 1]
        for channel in channels_by_kind(lanes).get(_DEVICE, ())
    ]
    name_ids = (
        np.unique(np.concatenate(names_of_channels)) if names_of_channels else np.zeros(0, np.int64)
    )
    return name_ids[
        [not lanes.names[place].startswith(_COPY_PREFIXES) for place in name_ids.tolist()]
    ]


def _code_texts(texts: dict[str, int], shown: Iterable[str], defaults: Iterable[str]) -> Int64Array:
    """Return 0 where a text equals its default, else 1 + its index in ``texts``.

    New texts are added to ``texts``.
    """
    return np.array(
        [
            0 if text == default else 1 + texts.setdefault(text, len(texts))
            for text, default in zip(shown, defaults, strict=True)
        ],
        np.int64,
    )
