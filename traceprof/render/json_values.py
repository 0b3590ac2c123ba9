"""Values as JSON has them, and JSON as text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.model.results import Note
from traceprof.render.escape import visible_text
from traceprof.render.formatting import note_text

__all__ = ["note_of", "plain", "to_json"]


def note_of(note: Note) -> dict[str, Any]:
    """Return a note: the sentence, and exactly what it says in numbers.

    ``template`` is the sentence with the names and units of the values.
    """
    return {
        "text": note_text(note),
        "template": note.text,
        "values": {name: plain(value) for name, value in note.values.items()},
    }


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it; what is not known, and no finite number, is null."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NaT or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, Note):
        return note_of(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    return value


_PLAIN: Final = frozenset({str, int, bool})


def to_json(document: Any) -> str:
    """Return ``document`` as text that ends with a newline; controls in it are escaped."""
    return visible_text(_text_of(document, "\n")) + "\n"


def _text_of(value: Any, line: str) -> str:
    """Return what json.dumps makes of ``value`` with an indent of 2, at a third of its cost.

    ``line`` is a line break with the indent around ``value``. json writes indented text in Python,
    but with separators of ours in C: so are written all mappings and lists of plain values.
    """
    if not isinstance(value, _NESTED) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = line + "  "
    parts = list(value.values()) if isinstance(value, dict) else list(value)
    if not any(isinstance(part, _NESTED) for part in parts):
        text = _encoder(inner).encode(value)
        return f"{text[0]}{inner}{text[1:-1]}{line}{text[-1]}"
    told = [_text_of(part, inner) for part in parts]
    if isinstance(value, dict):
        names = [_encoder(inner).encode(str(name)) for name in value]
        told = [f"{name}: {text}" for name, text in zip(names, told, strict=True)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}{inner}{f',{inner}'.join(told)}{line}{closing}"


_NESTED: Final = (dict, list, tuple)


@cache
def _encoder(line: str) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(f",{line}", ": "))
