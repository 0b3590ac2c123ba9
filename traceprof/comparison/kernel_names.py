"""Which kernel of one run is which of another: by name, by what it applies, by class and place.

Profilers write the same name in several ways, and new versions of libraries call the same work
otherwise. In this order, the first that tells it:

1. the name, without what profilers and compilers write differently;
2. the own name and what it applies, where sizes and types among the arguments changed;
3. the class, where in a step it begins, and how often it runs: of what is left, the closest first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.names.kernels import short_name
from traceprof.names.parsing import parse_name

_CASTS: Final = re.compile(
    r"\((?:unsigned |signed )?(?:int|bool|long|char|short)(?: long)?\)(?=-?\d)"
)
_SUFFIXES: Final = re.compile(r"(?<=\d)(?:u|l|ul|ull|ll)\b", re.IGNORECASE)
_LAMBDA: Final = re.compile(
    r"\{lambda\([^{}]*\)(?:#\d+)?\}|\[lambda \([^\[\]]*\)(?: \(instance \d+\))?\]"
    r"|\{lambda[^{}]*\}|'lambda\d*'\([^()]*\)"
)
_TRUTHS: Final = ((re.compile(r"\btrue\b"), "1"), (re.compile(r"\bfalse\b"), "0"))
_BLANKS: Final = re.compile(r"\s+")
_FAR: Final = 0.1
"""Kernels that begin further apart than this share of a step are not the same."""
_MOST_OFTEN: Final = 1.25
"""Nor are those of which one runs more often than the other by more than this factor."""


@dataclass(frozen=True, slots=True)
class Matched:
    """What each kernel's name stands for in both runs: the name of the new one where it has one.

    ``renamed`` gives, by that name, what the base calls it, where that is not the same name.
    """

    base: Mapping[str, str]
    new: Mapping[str, str]
    renamed: Mapping[str, str]


def canonical_name(name: str) -> str:
    """Return the name of a kernel as no profiler writes it: what all of them write, and no more.

    Casts of numbers, their suffixes, numbers of lambdas, blanks, the type that is returned and the
    types of the arguments are left out; mangled names are demangled.
    """
    taken = parse_name(name)
    template = _LAMBDA.sub("lambda", taken.template)
    template = _SUFFIXES.sub("", _CASTS.sub("", template))
    for pattern, digit in _TRUTHS:
        template = pattern.sub(digit, template)
    template = template.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    own = f"{taken.scope}::{taken.identifier}" if taken.scope else taken.identifier or name
    return f"{own}<{_BLANKS.sub('', template)}>" if template else own


def match_kernels(base: pd.DataFrame, new: pd.DataFrame) -> Matched:
    """Return which kernels are the same.

    Both have a row per kernel: name, class, place_ratio (NaN: not known) and count (per step).
    """
    found = _Pairs(base, new)
    found.by(canonical_name, are_same=True)
    found.by(short_name, are_same=False)
    found.by_place()
    return found.matched()


class _Pairs:
    """The kernels of both runs, and those that found one another so far."""

    def __init__(self, base: pd.DataFrame, new: pd.DataFrame) -> None:
        self._left = [base.reset_index(drop=True), new.reset_index(drop=True)]
        self._names: list[dict[str, str]] = [{}, {}]
        self._renamed: dict[str, str] = {}
        both = set(base["name"]) & set(new["name"])
        for side in (0, 1):
            self._names[side] = {name: name for name in both}
        self._drop()

    def by(self, normal: object, *, are_same: bool) -> None:
        """Match kernels of the same class whose names are alike once they are normalised."""
        assert callable(normal)
        keys = [
            [(normal(str(n)), c) for n, c in zip(own["name"], own["class"], strict=True)]
            for own in self._left
        ]
        common = set(keys[0]) & set(keys[1])
        for key in sorted(common):
            names = [
                [n for n, k in zip(own["name"], keys[side], strict=True) if k == key]
                for side, own in enumerate(self._left)
            ]
            self._pair(names[0], names[1], are_same=are_same)
        self._drop()

    def by_place(self) -> None:
        """Match what is left of each class by where in the step it begins and how often it runs."""
        base, new = self._left
        if base.empty or new.empty:
            return
        places = [own["place_ratio"].to_numpy(np.float64) for own in (base, new)]
        counts = [own["count"].to_numpy(np.float64) for own in (base, new)]
        classes = [own["class"].astype(str).to_numpy() for own in (base, new)]
        far = np.abs(places[0][:, None] - places[1][None, :])
        with np.errstate(divide="ignore", invalid="ignore"):
            often = np.abs(np.log(counts[0][:, None] / counts[1][None, :]))
        fits = (classes[0][:, None] == classes[1][None, :]) & (far <= _FAR)
        fits &= often <= np.log(_MOST_OFTEN)
        cost = np.where(fits, far + often, np.inf)
        order = np.argsort(cost, axis=None, kind="stable")
        taken: tuple[set[int], set[int]] = (set(), set())
        for flat in order[: int(fits.sum())].tolist():
            i, j = divmod(flat, len(new))
            if i not in taken[0] and j not in taken[1]:
                taken[0].add(i)
                taken[1].add(j)
                self._pair([str(base["name"][i])], [str(new["name"][j])], are_same=False)
        self._drop()

    def matched(self) -> Matched:
        """Return what was found; what found nothing stands for itself."""
        for side, own in enumerate(self._left):
            self._names[side] |= {str(name): str(name) for name in own["name"]}
        return Matched(self._names[0], self._names[1], self._renamed)

    def _pair(self, base: list[str], new: list[str], *, are_same: bool) -> None:
        shown = min(new)
        self._names[0] |= dict.fromkeys(base, shown)
        self._names[1] |= dict.fromkeys(new, shown)
        if not are_same:
            self._renamed[shown] = min(base)

    def _drop(self) -> None:
        self._left = [
            own[~own["name"].isin(list(self._names[side]))].reset_index(drop=True)
            for side, own in enumerate(self._left)
        ]
