"""Traces without what is secret: what is read is shown, and what is shown is passed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.model.tables import TABLES, ColumnKind
from traceprof.model.trace import Trace, TraceInfo
from traceprof.secrets import MASK, masked_text

__all__ = ["masked_frame", "masked_info", "masked_trace", "renamed", "without_secrets"]

_TEXTS_OF_MACHINE: Final = frozenset({"devices", "processes", "threads", "environment"})


def masked_trace(trace: Trace, secrets: Sequence[str]) -> Trace:
    """Return ``trace`` with its tables as `masked_frame` has them."""
    frames = {name: trace.table(name) for name in TABLES}
    masked = {name: masked_frame(name, frame, secrets) for name, frame in frames.items()}
    changes = {name: frame for name, frame in masked.items() if frame is not frames[name]}
    info = masked_info(trace.info, secrets)
    shown = trace if info == trace.info else replace(trace, info=info)
    return shown.with_tables(changes) if changes else shown


def masked_info(info: TraceInfo, secrets: Sequence[str]) -> TraceInfo:
    """Return what is said of a trace without ``secrets``, and without what tells to be one."""

    def shown(text: str) -> str:
        return masked_text(without_secrets(text, secrets))

    return replace(info, host=shown(info.host), warnings=tuple(map(shown, info.warnings)))


def masked_frame(name: str, frame: pd.DataFrame, secrets: Sequence[str]) -> pd.DataFrame:
    """Return rows of table ``name`` without ``secrets``, and without what tells to be one.

    That is looked for in texts about the machine; what a program wrote into names of its ranges
    is passed on as it is, as `traceprof.formats.cut` does.
    """
    changes: dict[str, Any] = {}
    for column, kind in TABLES[name].columns.items():
        if kind is ColumnKind.NAME and secrets:
            before = frame[column].array
            after = renamed(before, lambda name: without_secrets(name, secrets))
            changes |= {} if after is before else {column: after}
        elif kind is ColumnKind.TEXT and name in _TEXTS_OF_MACHINE:
            texts = list(map(str, frame[column]))
            shown = [masked_text(without_secrets(text, secrets)) for text in texts]
            if (name, column) == ("environment", "value"):
                shown = [_of_variable(*own) for own in zip(frame["name"], shown, strict=True)]
            changes |= {} if shown == texts else {column: shown}
    return frame.assign(**changes) if changes else frame


def _of_variable(name: str, value: str) -> str:
    """Return the value of a variable, masked where its name tells that it is a secret."""
    return masked_text(f"{name}={value}").removeprefix(f"{name}=")


def renamed(names: pd.Categorical, shown: Callable[[str], str]) -> pd.Categorical:
    """Return ``names`` as ``shown`` has each; the same object where none changes."""
    before = list(map(str, names.categories))
    after = list(map(shown, before))
    if after == before:
        return names
    numbers: dict[str, int] = {}
    places = np.array([*(numbers.setdefault(n, len(numbers)) for n in after), -1], np.int64)
    index = pd.Index(list(numbers), dtype=object)
    return pd.Categorical.from_codes(places[names.codes], index)


def without_secrets(text: str, secrets: Sequence[str]) -> str:
    """Return ``text`` with a mask in the place of each of ``secrets``."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text
