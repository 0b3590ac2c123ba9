"""Names as a page shows them: short ones, and what of them is one and the same.

The rules are those of the tables (`traceprof.names`), applied here once: a page is told the
results. Of a kernel the short name is its own with what it applies; of anything on the host it is
the name without what `emit_nvtx` adds, and names that differ in the number of a step are alike.
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
_COPIES: Final = ("Memcpy", "Memset")
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True, eq=False)
class ShownNames:
    """What each name of a page is shown as.

    ``texts`` are those that differ from the names; ``short`` has, for each name, 1 + the place of
    its short form among them (0: the name itself), ``alike`` that of what it has in common with
    others (0: its short form).
    """

    texts: tuple[str, ...]
    short: Int64Array
    alike: Int64Array

    @classmethod
    def of(cls, lanes: Lanes) -> ShownNames:
        """Return the shown names of exact lanes: of merged events nobody knows what they were."""
        if not lanes.names:
            return cls((), np.zeros(0, np.int64), np.zeros(0, np.int64))
        names = objects(lanes.names)
        plain, of_plain = plain_categories(names)
        common, of_common = common_categories(names)
        short, alike = plain[of_plain], common[of_common]
        for place in _kernels(lanes).tolist():
            own = plain_text(short_name(short[place]), _LONGEST)
            short[place] = alike[place] = own or lanes.names[place]
        texts: dict[str, int] = {}
        codes = (_coded(texts, short, names), _coded(texts, alike, short))
        return cls(tuple(texts), *codes)


def _kernels(lanes: Lanes) -> Int64Array:
    """Return the names that kernels have; those of copies are made by `lanes.py`, and short."""
    used = [
        channel.names if channel.counts is None else channel.names[channel.counts == 1]
        for channel in channels_by_kind(lanes).get(_DEVICE, ())
    ]
    found = np.unique(np.concatenate(used)) if used else np.zeros(0, np.int64)
    return found[[not lanes.names[place].startswith(_COPIES) for place in found.tolist()]]


def _coded(texts: dict[str, int], shown: Iterable[str], otherwise: Iterable[str]) -> Int64Array:
    """Return 0 where a text is what it would be ``otherwise``, else 1 + its place in ``texts``."""
    return np.array(
        [
            0 if text == other else 1 + texts.setdefault(text, len(texts))
            for text, other in zip(shown, otherwise, strict=True)
        ],
        np.int64,
    )
