"""What is plain on the command line is read at once: texts, paths and numbers that are just that.

typer reads every value by pydantic, which takes longer to import than an answer from the cache
takes. Whatever is not plain, or is wrong, is left to typer, which says so. Versions of typer that
do not tell what a parameter expects, or read it by themselves, are left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from typer.core import TyperCommand, TyperGroup

_WHOLE: Final = re.compile(r"(0|-?[1-9][0-9]{0,17})", re.ASCII)
_DECIMAL: Final = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)


class _Plain:
    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        """Read the command line."""
        _read_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)  # type: ignore[misc]


class PlainCommand(_Plain, TyperCommand):
    """A command that reads plain values itself."""


class PlainGroup(_Plain, TyperGroup):
    """Commands, before whose names plain values are read by themselves."""


class _NotPlainError(Exception):
    pass


def _read_plainly(parameters: Sequence[Any]) -> None:
    for one in parameters:
        described = getattr(one, "type_descriptor", None)
        if described is None or described.parameter_info.parser or "process_value" in vars(one):
            continue
        kind = described.annotation
        read = _READERS.get(get_args(kind)[0] if get_origin(kind) is list else kind)
        if read is not None:
            one.process_value = partial(_processed, one, read, one.process_value)


def _processed(
    parameter: Any,
    read: Callable[[Any, Any], Any],
    by_typer: Callable[..., Any],
    context: Any,
    value: Any,
) -> Any:
    """Return what the parameter is given, once its callback saw it."""
    try:
        found = _all_read(parameter, read, value)
    except _NotPlainError:
        return by_typer(context, value)
    if parameter.required and parameter.value_is_missing(found):
        return by_typer(context, value)
    return found if parameter.callback is None else parameter.callback(context, parameter, found)


def _all_read(parameter: Any, read: Callable[[Any, Any], Any], value: Any) -> Any:
    is_many = parameter.multiple or parameter.nargs == -1
    if value is None:
        return () if is_many else None
    if not is_many:
        return read(value, parameter)
    if isinstance(value, str):
        raise _NotPlainError
    return [read(one, parameter) for one in value]


def _switch(value: Any, _: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _NotPlainError


def _text(value: Any, _: Any) -> str:
    # Python gives bytes that are no text as halves of characters.
    if isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value):
        return value
    raise _NotPlainError


def _path(value: Any, parameter: Any) -> Path:
    described = parameter.type_descriptor.parameter_info
    asked = ("exists", "writable", "resolve_path", "allow_dash", "path_type")
    is_any = described.file_okay and described.dir_okay
    if not is_any or any(getattr(described, name, True) for name in asked):
        raise _NotPlainError
    path = Path(_text(value, parameter))
    if path.exists() and not os.access(path, os.R_OK):
        raise _NotPlainError
    return path


def _number(value: Any, parameter: Any, form: re.Pattern[str], kind: type) -> Any:
    if isinstance(value, str) and form.fullmatch(value):
        value = kind(value)
    described = parameter.type_descriptor.parameter_info
    least, most = described.min, described.max
    if type(value) is not kind or described.clamp:
        raise _NotPlainError
    if (least is not None and value < least) or (most is not None and value > most):
        raise _NotPlainError
    return value


_READERS: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    bool: _switch,
    str: _text,
    Path: _path,
    int: partial(_number, form=_WHOLE, kind=int),
    float: partial(_number, form=_DECIMAL, kind=float),
}
