"""What is plain on the command line is read at once: texts, paths and numbers that are just that.

typer reads every value by pydantic, which takes longer to import than an answer from the cache
takes. Whatever is not plain, or is wrong, is left to typer, which says so. Versions of typer that
do not tell what a parameter expects, or read it by themselves, are left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from typer.core import TyperCommand, TyperGroup

_FORMS: Final[dict[type, re.Pattern[str]]] = {
    int: re.compile(r"(0|-?[1-9][0-9]{0,17})", re.ASCII),
    float: re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII),
}


class _Plain:
    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        """Read the command line."""
        for one in self.get_params(ctx):
            described = getattr(one, "type_descriptor", None)
            if described is None or described.parameter_info.parser or "process_value" in vars(one):
                continue
            kind = described.annotation
            kind = get_args(kind)[0] if get_origin(kind) is list else kind
            if kind in (bool, str, Path, *_FORMS):
                one.process_value = partial(_processed, one, kind, one.process_value)
        return super().parse_args(ctx, args)  # type: ignore[misc]


class PlainCommand(_Plain, TyperCommand):
    """A command that reads plain values itself."""


class PlainGroup(_Plain, TyperGroup):
    """Commands, before whose names plain values are read by themselves."""


class _NotPlainError(Exception):
    pass


def _processed(
    parameter: Any, kind: type, by_typer: Callable[..., Any], context: Any, value: Any
) -> Any:
    """Return what the parameter is given, once its callback saw it."""
    is_many = parameter.multiple or parameter.nargs == -1
    try:
        if value is None:
            found: Any = () if is_many else None
        elif is_many and not isinstance(value, str):
            found = [_read(one, parameter, kind) for one in value]
        else:
            found = _read(None if is_many else value, parameter, kind)
    except _NotPlainError:
        return by_typer(context, value)
    if parameter.required and parameter.value_is_missing(found):
        return by_typer(context, value)
    return found if parameter.callback is None else parameter.callback(context, parameter, found)


def _read(value: Any, parameter: Any, kind: type) -> Any:
    """Return a value of this kind.

    Raises:
        _NotPlainError: typer may read it, or say what is wrong.
    """
    described = parameter.type_descriptor.parameter_info
    if kind in _FORMS:
        if isinstance(value, str) and _FORMS[kind].fullmatch(value):
            value = kind(value)
        is_plain = type(value) is kind and not described.clamp
        is_plain = is_plain and (described.min is None or value >= described.min)
        is_plain = is_plain and (described.max is None or value <= described.max)
    elif kind is bool:
        is_plain = isinstance(value, bool)
    else:
        # Python gives bytes that are no text as halves of characters.
        is_plain = isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)
    if kind is Path and is_plain:
        asked = ("exists", "writable", "resolve_path", "allow_dash", "path_type")
        is_any = described.file_okay and described.dir_okay
        is_plain = is_any and not any(getattr(described, name, True) for name in asked)
        value = Path(value)
        is_plain = is_plain and (not value.exists() or os.access(value, os.R_OK))
    if not is_plain:
        raise _NotPlainError
    return value
