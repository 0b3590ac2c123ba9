"""Texts of a Trace as they are passed on: without what is secret, and none of megabytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.model.tables import TABLES, ColumnKind
from traceprof.model.trace import Trace, TraceInfo
from traceprof.secrets import MASK, masked_text, secrets_of

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
            after = renamed_categories(before, lambda name: without_secrets(name, secrets))
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


def renamed_categories(names: pd.Categorical, shown: Callable[[str], str]) -> pd.Categorical:
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


MOST_CHARACTERS: Final = 1 << 16
"""A mangled C++ name has some ten thousand at most."""


def shortened(trace: Trace) -> Trace:
    """Return ``trace`` with the beginning of each name that has more than `MOST_CHARACTERS`.

    What is left says how long it was and ends in a hash of all of it, so that names stay distinct.
    """
    changes = {name: _of_frame(name, trace.table(name)) for name in TABLES}
    changes = {name: frame for name, frame in changes.items() if frame is not trace.table(name)}
    return trace.with_tables(changes) if changes else trace


def _of_frame(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    columns = {}
    for column, kind in TABLES[table].columns.items():
        if kind is ColumnKind.NAME:
            names = frame[column].cat
            if _are_long(names.categories):
                columns[column] = names.rename_categories(_shortened_text)
        elif kind is ColumnKind.TEXT and _are_long(frame[column]):
            columns[column] = frame[column].map(_shortened_text)
    return frame.assign(**columns) if columns else frame


def _are_long(texts: pd.Index | pd.Series) -> bool:
    return max(map(len, texts), default=0) > MOST_CHARACTERS


def _shortened_text(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    hashed = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{text[:MOST_CHARACTERS]}… ({len(text)} characters, {hashed})"


_SHORTEST: Final = 6
"""Shorter secrets are masked where they stand, but not looked for elsewhere."""
_LINES: Final = re.compile(r"[\0\r\n]+")
_VERSION: Final = re.compile(r"=*\d+(\.\w+)+")
"""As in a list of packages: google-auth==2.40.3 is no secret."""


def worth_seeking(secrets: Iterable[str]) -> list[str]:
    """Return the secrets to look for elsewhere, those that hold others first."""
    found = {one for one in secrets if len(one) >= _SHORTEST and not _VERSION.fullmatch(one)}
    return sorted(found, key=lambda one: (-len(one), one))


def secrets_of_values(values: Mapping[str, Any]) -> Sequence[str]:
    """Return the secrets to look for that named values tell: by their names, or by their shape.

    Values may be texts, numbers, command lines, and mappings of such.
    """
    return worth_seeking(_secrets_in_value(values, ""))


def _secrets_in_value(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secrets_in_value(inner, str(key))
    elif isinstance(value, list):
        yield from _hidden([one for one in value if isinstance(one, str)])
        for inner in value:
            yield from _secrets_in_value(inner, name)
    elif isinstance(value, str | int):
        text = str(value)
        for line in (f"{name}={text}", *_LINES.split(text)):
            yield from (one.rstrip("\0\r\n") for one in _hidden([line]))


def _hidden(arguments: Sequence[str]) -> Iterator[str]:
    for secret in secrets_of(arguments):
        yield from secret.hidden
