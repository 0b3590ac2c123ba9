"""Names in an nsys export: ids into StringIds, some of them with decorations."""

from __future__ import annotations

import pandas as pd

from traceprof.formats.shared.cupti import plain_api_name
from traceprof.formats.sqlite.database import NULL, Column, Database, categorical, distinct

__all__ = ["api_named", "named"]


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
