"""Texts of a Trace as they are passed on: without what is secret, and none of megabytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Final, TypeAlias

from traceprof.model.table import Names, Table
from traceprof.model.tables import TABLES, ColumnKind
from traceprof.model.trace import Trace
from traceprof.secrets import MASK, masked_text, secrets_of

_TEXTS_OF_MACHINE: Final = frozenset({"devices", "processes", "threads", "environment"})
MOST_CHARACTERS: Final = 1 << 16
"""Of longer names the beginning is kept: every page and every table would repeat them in full.

A mangled C++ name has some ten thousand at most.
"""
_Change: TypeAlias = Callable[[str], str]


def masked_trace(trace: Trace, secrets: Sequence[str]) -> Trace:
    """Return ``trace`` without ``secrets``, and without what tells to be one.

    That is looked for in texts about the machine; what a program wrote into names of its ranges
    is passed on as it is, as `traceprof.formats.cut` does.
    """
    of_names: _Change | None = None
    shown: _Change = masked_text
    if secrets:
        of_names = partial(without_secrets, secrets=secrets)
        shown = partial(_masked, secrets=secrets)
    warnings = tuple(map(shown, trace.info.warnings))
    info = replace(trace.info, host=shown(trace.info.host), warnings=warnings)
    masked = _with_texts(trace, of_names, shown, _TEXTS_OF_MACHINE)
    # A variable's name may tell that its value is a secret.
    names, texts = trace.environment["name"], list(masked.environment["value"])
    values = [
        masked_text(f"{name}={text}").removeprefix(f"{name}=")
        for name, text in zip(names, texts, strict=True)
    ]
    if values != texts:
        masked = masked.with_tables({"environment": masked.environment.assign(value=values)})
    return masked if info == trace.info else replace(masked, info=info)


def _masked(text: str, secrets: Sequence[str]) -> str:
    return masked_text(without_secrets(text, secrets))


def shortened(trace: Trace) -> Trace:
    """Return ``trace`` with the beginning of each name that has more than `MOST_CHARACTERS`.

    What is left says how long it was and ends in a hash of all of it, so that names stay distinct.
    """

    def shown(text: str) -> str:
        if len(text) <= MOST_CHARACTERS:
            return text
        hashed = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{text[:MOST_CHARACTERS]}… ({len(text)} characters, {hashed})"

    return _with_texts(trace, shown, shown, TABLES.keys(), MOST_CHARACTERS)


def _with_texts(
    trace: Trace, of_names: _Change | None, of_texts: _Change, told: Collection[str], most: int = 0
) -> Trace:
    """Return ``trace`` with its names changed, and the texts of the tables ``told``.

    Texts of up to ``most`` characters stay: where none is longer, none is looked at.
    """
    changes: dict[str, Table] = {}
    for name, table in TABLES.items():
        rows, columns = trace.table(name), dict[str, Any]()
        for column, kind in table.columns.items():
            if kind is ColumnKind.NAME and of_names is not None:
                before = rows[column]
                if max(map(len, before.texts), default=0) > most:
                    after = renamed(before, of_names)
                    columns |= {} if after is before else {column: after}
            elif kind is ColumnKind.TEXT and name in told:
                texts = rows[column].tolist()
                if max(map(len, texts), default=0) > most:
                    shown = list(map(of_texts, texts))
                    columns |= {} if shown == texts else {column: shown}
        if columns:
            changes[name] = rows.assign(**columns)
    return trace.with_tables(changes) if changes else trace


def renamed(names: Names, shown: _Change) -> Names:
    """Return ``names`` as ``shown`` has each; the same object where none changes."""
    before = names.texts.tolist()
    after = list(map(shown, before))
    return names if after == before else Names.coded(after, names.packed)


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
        told = secrets_of([one for one in value if isinstance(one, str)])
        yield from (one for secret in told for one in secret.hidden)
        for inner in value:
            yield from _secrets_in_value(inner, name)
    elif isinstance(value, str | int):
        text = str(value)
        for line in (f"{name}={text}", *_LINES.split(text)):
            yield from _secrets_in_line(line)


@lru_cache(maxsize=1 << 12)  # the files of a run say the same
def _secrets_in_line(line: str) -> tuple[str, ...]:
    found = (one for secret in secrets_of([line]) for one in secret.hidden)
    return tuple(one.rstrip("\0\r\n") for one in found)
