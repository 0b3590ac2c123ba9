"""Remove secrets from the texts of a Trace, and shorten texts of extreme length."""

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
"""Longer names are shortened, because every page and every table would repeat them in full.

A mangled C++ name has at most some ten thousand characters.
"""
_Change: TypeAlias = Callable[[str], str]


def masked_trace(trace: Trace, secrets: Sequence[str]) -> Trace:
    """Return ``trace`` without ``secrets`` and without texts that have the form of a secret.

    The form is only checked in texts about the machine. Texts that a program writes into names of
    its ranges are kept, as in `traceprof.formats.cut`.
    """
    of_names: _Change | None = None
    shown: _Change = masked_text
    if secrets:
        of_names = partial(without_secrets, secrets=secrets)
        shown = partial(_masked, secrets=secrets)
    warnings = tuple(map(shown, trace.info.warnings))
    info = replace(trace.info, host=shown(trace.info.host), warnings=warnings)
    masked = _with_texts(trace, of_names, shown, _TEXTS_OF_MACHINE)
    # The name of a variable may indicate that its value is a secret.
    names, texts = trace.environment["name"], list(masked.environment["value"])
    values = [
        masked_text(f"{name}={text}").removeprefix(f"{name}=")
        for name, text in zip(names, texts, strict=True)
    ]
    if values != texts:
        masked = masked.with_tables({"environment": masked.environment.assign(value=values)})
    return masked if info == trace.info else replace(masked, info=info)


def _masked(text: str, secrets: Sequence[str]) -> str:
    """Return ``text`` without ``secrets`` and without parts that have the form of a secret."""
    return masked_text(without_secrets(text, secrets))


def shortened(trace: Trace) -> Trace:
    """Return ``trace`` with each name that has more than `MOST_CHARACTERS` shortened.

    The shortened name contains its original length and ends with a hash of it, so that names stay
    distinct.
    """

    def shown(text: str) -> str:
        if len(text) <= MOST_CHARACTERS:
            return text
        hashed = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{text[:MOST_CHARACTERS]}… ({len(text)} characters, {hashed})"

    return _with_texts(trace, shown, shown, TABLES.keys(), MOST_CHARACTERS)


def _with_texts(
    trace: Trace,
    of_names: _Change | None,
    of_texts: _Change,
    tables: Collection[str],
    max_characters: int = 0,
) -> Trace:
    """Return ``trace`` with its names changed, and the texts of ``tables``.

    Texts of up to ``max_characters`` are unchanged. Columns without longer texts are skipped.
    """
    changes: dict[str, Table] = {}
    for name, table in TABLES.items():
        rows, columns = trace.table(name), dict[str, Any]()
        for column, kind in table.columns.items():
            if kind is ColumnKind.NAME and of_names is not None:
                before = rows[column]
                if max(map(len, before.texts), default=0) > max_characters:
                    after = renamed(before, of_names)
                    columns |= {} if after is before else {column: after}
            elif kind is ColumnKind.TEXT and name in tables:
                texts = rows[column].tolist()
                if max(map(len, texts), default=0) > max_characters:
                    shown = list(map(of_texts, texts))
                    columns |= {} if shown == texts else {column: shown}
        if columns:
            changes[name] = rows.assign(**columns)
    return trace.with_tables(changes) if changes else trace


def renamed(names: Names, shown: _Change) -> Names:
    """Return ``names`` with ``shown`` applied to each; the same object if none changes."""
    before = names.texts.tolist()
    after = list(map(shown, before))
    return names if after == before else Names.coded(after, names.packed)


def without_secrets(text: str, secrets: Sequence[str]) -> str:
    """Return ``text`` with a mask in place of each of ``secrets``."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


_MIN_SECRET_CHARACTERS: Final = 6
"""Shorter secrets are masked where they were found, but not searched for elsewhere."""
_LINES: Final = re.compile(r"[\0\r\n]+")
_VERSION: Final = re.compile(r"=*\d+(\.\w+)+")
"""A version in a list of packages: google-auth==2.40.3 is not a secret."""


def secrets_to_search(secrets: Iterable[str]) -> list[str]:
    """Return the secrets to search for elsewhere; secrets that contain others come first."""
    found = {
        secret
        for secret in secrets
        if len(secret) >= _MIN_SECRET_CHARACTERS and not _VERSION.fullmatch(secret)
    }
    return sorted(found, key=lambda secret: (-len(secret), secret))


def secrets_of_values(values: Mapping[str, Any]) -> Sequence[str]:
    """Return the secrets to search for in named values, detected by their names or their form.

    Values may be texts, numbers, command lines, and nested mappings of these.
    """
    return secrets_to_search(_secrets_in_value(values, ""))


def _secrets_in_value(value: Any, name: str) -> Iterator[str]:
    """Yield the secrets in a value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secrets_in_value(inner, str(key))
    elif isinstance(value, list):
        secrets = secrets_of([inner for inner in value if isinstance(inner, str)])
        yield from (hidden for secret in secrets for hidden in secret.hidden)
        for inner in value:
            yield from _secrets_in_value(inner, name)
    elif isinstance(value, str | int):
        text = str(value)
        for line in (f"{name}={text}", *_LINES.split(text)):
            yield from _secrets_in_line(line)


@lru_cache(maxsize=1 << 12)  # the files of a run contain the same lines
def _secrets_in_line(line: str) -> tuple[str, ...]:
    """Return the secrets in a line."""
    found = (hidden for secret in secrets_of([line]) for hidden in secret.hidden)
    return tuple(hidden.rstrip("\0\r\n") for hidden in found)
