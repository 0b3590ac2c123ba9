"""What the names of kernels tell beyond their class, and which kernels are short."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.activity import Activity
from traceprof.model.grouping import places_of
from traceprof.model.kernel_names.direction import direction_of
from traceprof.model.kernel_names.matrix_units import matrix_units_of
from traceprof.model.kernel_names.parsing import parse_name
from traceprof.model.kernel_names.precision import precision_of

__all__ = ["SHORT_NS", "directions", "matrix_units", "precisions", "short_name"]

_APPLIES: Final = re.compile(r"(?i)(functor|func|op|ops|kernel|kernel_cuda)(_\w+)?$")

SHORT_NS: Final = 10_000
"""A kernel shorter than this costs about as much to launch as to run."""


def matrix_units(kernels: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return whether each kernel computes on tensor or matrix cores: yes, no or unknown."""
    return _by_name(kernels, lambda name, activity: matrix_units_of(name, activity).value)


def precisions(kernels: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the element type that each kernel's name shows (fp16 …), "" where it shows none."""
    return _by_name(kernels, lambda name, _: precision_of(name))


def directions(kernels: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return forward or backward where each kernel's name says so, else ""."""
    return _by_name(kernels, lambda name, _: direction_of(name))


def short_name(name: str) -> str:
    """Return the own name of a kernel and what it applies: ``elementwise_kernel (MulFunctor)``."""
    parsed = parse_name(name)
    applied = next((own for own in reversed(parsed.functors) if _APPLIES.search(own)), "")
    own = parsed.identifier or name
    return f"{own} ({applied.rpartition('::')[2]})" if applied else own


def _by_name(
    kernels: pd.DataFrame, judge: Callable[[str, Activity], str]
) -> npt.NDArray[np.object_]:
    """Return what is judged of each kernel's name and class; one look per distinct pair."""
    names, activities = kernels["name"].cat, kernels["activity"].cat
    n_activities = len(activities.categories)
    pairs = names.codes.to_numpy(np.int64) * n_activities + activities.codes.to_numpy()
    place, distinct = places_of(pairs)
    judged = np.empty(len(distinct), object)
    for i, pair in enumerate(distinct):
        name, activity = divmod(pair, n_activities)
        judged[i] = judge(str(names.categories[name]), Activity(activities.categories[activity]))
    found: npt.NDArray[np.object_] = judged[place]
    return found
