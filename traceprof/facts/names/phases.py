"""Which ranges are phases of the training loop, by what they are called."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.names.ranges import DECORATED, are_decorated, plain_categories
from traceprof.model.grouping import places_of
from traceprof.model.steps import OWN_DOMAIN

__all__ = ["PHASES", "PROFILER", "PROFILER_RANGES", "UNCLAIMED", "phase_of", "phases_of_ranges"]

UNCLAIMED: Final = "outside any phase"
PROFILER: Final = "profiler"
"""Stands for a phase where it was the profiler itself that took the time."""

PHASES: Final = (
    *("data", "h2d", "forward", "eval", "backward", "communication", "optimizer"),
    PROFILER,
)

PROFILER_RANGES: Final = ("traceprof.window.start", "traceprof.window.stop")
"""Where the embedded recorder opens and closes its windows."""

_OWN: Final = {
    "data": "data",
    "h2d": "h2d",
    "forward": "forward",
    "eval": "eval",
    "backward": "backward",
    "optimizer": "optimizer",
    "zero_grad": "optimizer",
    **dict.fromkeys(PROFILER_RANGES, PROFILER),
}
_BY_HAND: Final = tuple(
    (phase, re.compile(pattern, re.IGNORECASE))
    for phase, pattern in (
        (
            "data",
            # Not "batch" alone: that is a step.
            r"((get|load(ing)?|fetch(ing)?|read(ing)?|next|wait(ing)?( for)?)[ _]?(the[ _])?"
            r"(next[ _])?(data|batch|inputs?)|data"
            r"|(data|batch|input)[ _]?(load(ing|er)?|fetch(ing)?|wait(ing)?)"
            r"([ _.](wait|next|iter(ation)?))?)"
            r"|enumerate\(DataLoader\)#.*",
        ),
        (
            "h2d",
            r"(cuda)?(memcpy|copy|copies|transfer)?[ _]?(h2d|htod|host[ _]?(to|2)[ _]?device)"
            r"([ _]?(memcpy|copy|copies|transfers?))?"
            r"|((copy|copying|move|moving|transfer|send)[ _])?((the[ _])?(data|batch|inputs?)[ _])?"
            r"to[ _](the[ _])?(gpu|device|cuda)"
            r"|(data|batch|inputs?)[ _](copy|copies|copying|transfers?|move)"
            r"([ _]to[ _](gpu|device|cuda))?"
            r"|(copy|copying|transfer|move)[ _](the[ _])?(data|batch|inputs?)",
        ),
        (
            "forward",
            r"(model[ _.])?(forward|fwd)([ _]?(pass|step))?|(Distributed|Fully)\w+\.forward",
        ),
        ("eval", r"(eval(uat(e|ion))?|validat(e|ion))([ _]?(step|loop|epoch|pass))?"),
        ("backward", r"(loss[ _.])?(backward|bwd)([ _]?(pass|step))?"),
        (
            "communication",
            r"(nccl:|gloo:)?(all[ _]?reduce|reduce[ _]?scatter|all[ _]?gather"
            r"|comms?([ _.:-].*)?|communicat(e|ion|ions|ing)([ _.:-].*)?)",
        ),
        (
            "optimizer",
            r"(optimi[sz]er?|opt)([ _.]?step)?|(weight|param(eter)?)s?[ _]update"
            r"|update[ _](the[ _])?(weight|param(eter)?)s"
            r"|((optimi[sz]er|opt)[ _.])?zero[ _]?grad(#.*)?|Optimizer\.(step|zero_grad)#.*",
        ),
    )
)


@lru_cache(maxsize=1 << 16)  # the files of a run use the same names
def phase_of(name: str, domain: str) -> str | None:
    """Return the phase that a range of this name stands for, None where it stands for none."""
    if domain == OWN_DOMAIN:
        # Optimizers after the first bear a number.
        plain = name.partition("#")[0]
        return "communication" if name.startswith("comm:") else _OWN.get(plain)
    for phase, pattern in _BY_HAND:
        if pattern.fullmatch(name.strip(" #")):
            return phase
    return None


def phases_of_ranges(ranges: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return, for each range, the place of its phase in `PHASES`, -1 where it is none."""
    names, domains = ranges["name"].cat, ranges["domain"].cat
    plain, code = plain_categories(names.categories)
    # A name's kind: its plain name, and whether anything was added to it.
    kind = np.append(2 * code + are_decorated(names.categories), -1)
    n_domains = len(domains.categories) + 1
    pairs = kind[names.codes.to_numpy()] * n_domains + domains.codes.to_numpy()
    place, distinct = places_of(pairs)
    found = np.full(len(distinct), -1, np.int64)
    for i, (kind_of, domain) in enumerate(divmod(pair, n_domains) for pair in distinct):
        name = str(plain[kind_of // 2]) + (DECORATED if kind_of % 2 else "")
        phase = phase_of(name, str(domains.categories[domain]))
        found[i] = -1 if phase is None else PHASES.index(phase)
    return np.asarray(found[place], np.int64)
