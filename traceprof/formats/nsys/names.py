"""Names in an nsys export: ids into StringIds, some of them with decorations."""

from __future__ import annotations

import re
from typing import Final

import pandas as pd

from traceprof.formats.sqlite.database import NULL, Column, Database, categorical, distinct

__all__ = ["api_named", "named", "plain_api_name"]

_ABI_SUFFIX: Final = re.compile(r"(_v\d+)?(_ptsz|_ptds)?(_v\d+)?$")


def named(database: Database, ids: Column) -> pd.Categorical:
    """Return the names with these string ids; an id without a string is shown as itself."""
    numbers, place = distinct(ids)
    strings = database.read_strings(numbers)
    names = ["" if key == NULL else strings.get(int(key), f"[string {key}]") for key in numbers]
    return categorical(place, names)


def api_named(database: Database, ids: Column) -> pd.Categorical:
    """Return the names of API calls without the version of their binary interface."""
    names = named(database, ids)
    return categorical(names.codes, [plain_api_name(str(name)) for name in names.categories])


def plain_api_name(name: str) -> str:
    """Return the name of an API call without the version of its binary interface."""
    return _ABI_SUFFIX.sub("", name)
