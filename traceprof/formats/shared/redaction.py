"""Texts of a Trace as they are passed on: without what is secret, and none of megabytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd

from traceprof.model.tables import TABLES, ColumnKind
from traceprof.model.trace import Trace, TraceInfo
from traceprof.secrets import MASK, masked_text, secrets_of

_TEXTS_OF_MACHINE: Final = frozenset({"devices", "processes", "threads", "environment"})
MOST_CHARACTERS: Final = 1 << 16
"""Of longer names the beginning is kept: every page and every table would repeat them in full.

A mangled C++ name has some ten thousand at most.
"""
_Change: TypeAlias = Callable[[str], str]


def masked_trace(trace: Trace, secrets: Sequence[str]) -> Trace:
    """Return ``trace`` with its tables as `masked_frame` has them."""
    info = masked_info(trace.info, secrets)
    shown = trace if info == trace.info else replace(trace, info=info)
    return _with_frames(shown, lambda name, frame: masked_frame(name, frame, secrets))


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

    def plain(text: str) -> str:
        return without_secrets(text, secrets)

    shown = _with_texts(
        name,
        frame,
        plain if secrets else None,
        (lambda text: masked_text(plain(text))) if name in _TEXTS_OF_MACHINE else None,
    )
    if name != "environment":
        return shown
    # A variable's name may tell that its value is a secret.
    variables = zip(frame["name"], shown["value"], strict=True)
    values = [masked_text(f"{one}={text}").removeprefix(f"{one}=") for one, text in variables]
    return shown if values == list(shown["value"]) else shown.assign(value=values)


def shortened(trace: Trace) -> Trace:
    """Return ``trace`` with the beginning of each name that has more than `MOST_CHARACTERS`.

    What is left says how long it was and ends in a hash of all of it, so that names stay distinct.
    """

    def changed(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        return _with_texts(name, frame, _shortened_text, _shortened_text)

    return _with_frames(trace, changed)


def _shortened_text(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    hashed = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{text[:MOST_CHARACTERS]}… ({len(text)} characters, {hashed})"


def _with_frames(trace: Trace, changed: Callable[[str, pd.DataFrame], pd.DataFrame]) -> Trace:
    frames = {name: trace.table(name) for name in TABLES}
    after = {name: changed(name, frame) for name, frame in frames.items()}
    changes = {name: frame for name, frame in after.items() if frame is not frames[name]}
    return trace.with_tables(changes) if changes else trace


def _with_texts(
    name: str, frame: pd.DataFrame, of_names: _Change | None, of_texts: _Change | None
) -> pd.DataFrame:
    """Return rows of table ``name`` with its names and texts changed; the same where none is."""
    changes: dict[str, Any] = {}
    for column, kind in TABLES[name].columns.items():
        if kind is ColumnKind.NAME and of_names is not None:
            before = frame[column].array
            after = renamed_categories(before, of_names)
            changes |= {} if after is before else {column: after}
        elif kind is ColumnKind.TEXT and of_texts is not None:
            texts = list(map(str, frame[column]))
            shown = list(map(of_texts, texts))
            changes |= {} if shown == texts else {column: shown}
    return frame.assign(**changes) if changes else frame


def renamed_categories(names: pd.Categorical, shown: _Change) -> pd.Categorical:
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
