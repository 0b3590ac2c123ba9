"""Every regular expression of the package, as it is compiled, and how it is matched."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import traceprof
from traceprof.logs.sources import SOURCES
from traceprof.measures.steps import between
from traceprof.names.parsing import _Pattern
from traceprof.names.ranges import _PerNames

_PACKAGE: Final = Path(traceprof.__file__).parent
_WAYS: Final = {
    "fullmatch": "full_match",
    "match": "match",
    "search": "search",
    **dict.fromkeys(("finditer", "findall", "sub", "split"), "find_all"),
}
_ONLY_WHOLE: Final = frozenset(
    {"_SYNCHRONIZES", "_BLOCKING_COPY", "_LAUNCHES", "NAMED_STEP", "_PHASE_PATTERNS", "_REQUESTED"}
    | {"_EXPLICIT", "_PROFILER_STEP", "_OPTIMIZER_STEP"}
)
"""Patterns that are given to functions which match the whole of a name."""
_SEARCHED: Final = frozenset({"IDENTIFIERS", "SCOPES", "DECIDING_SCOPES", "WRAPPERS", "_CUSTOM"})
"""Rules, of which the first is taken that is found anywhere."""


class Used(NamedTuple):
    """A pattern: where it stands, what it is, and with which methods of `growth` it is matched."""

    where: str
    pattern: str
    flags: int
    modes: tuple[str, ...]

    @property
    def room(self) -> str:
        """The room of the package that it is of."""
        return re.split(r"[.:/]", self.where.removeprefix("traceprof."))[0]


def all_patterns() -> list[Used]:
    """Return the patterns of modules, of what these hold, of calls in functions, and of logs."""
    found: dict[tuple[str, int, tuple[str, ...]], Used] = {}
    for one in (*_of_modules(), *_of_texts(), *_of_calls(), *_of_logs()):
        found.setdefault((one.pattern, one.flags, one.modes), one)
    return list(found.values())


def _of_modules() -> Iterator[Used]:
    for told in pkgutil.walk_packages(traceprof.__path__, "traceprof."):
        if "inject" in told.name or told.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(told.name)
        except ModuleNotFoundError as error:
            # What calls back from Lightning and others is there where these are, as in CI.
            if "integrations" not in told.name or (error.name or "").startswith("traceprof"):
                raise
            continue
        source = Path(str(module.__file__)).read_text()
        for name, value in vars(module).items():
            # What keeps answers keeps the patterns that were asked for before.
            if isinstance(value, _PerNames):
                continue
            if f"{name}: " in source or f"{name} = " in source:
                for pattern, flags in _inside(value, 0):
                    yield Used(f"{told.name}.{name}", pattern, flags, _modes(name, source))


def _of_texts() -> Iterator[Used]:
    """Yield what modules hold as texts, and search with."""
    for cause, pattern in between._NAMES.items():
        yield Used(f"{between.__name__}._NAMES: {cause}", pattern, 0, ("search",))


def _inside(value: Any, depth: int) -> Iterator[tuple[str, int]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, (str, bytes)):
        text = value.pattern if isinstance(value.pattern, str) else value.pattern.decode("latin-1")
        yield text, value.flags & ~re.UNICODE
    elif isinstance(value, _Pattern):
        yield value._expression, value._flags
    elif depth < 6 and isinstance(value, dict):
        for one in value.items():
            yield from _inside(one, depth + 1)
    elif depth < 6 and isinstance(value, (tuple, list, frozenset, set)):
        for one in value:
            yield from _inside(one, depth + 1)
    elif depth < 6 and is_dataclass(value) and not isinstance(value, type):
        for own in fields(value):
            yield from _inside(getattr(value, own.name, None), depth + 1)


def _modes(name: str, source: str) -> tuple[str, ...]:
    """Return how the patterns that ``name`` holds are matched; in any way where it is not plain."""
    if name in _ONLY_WHOLE:
        return ("full_match",)
    after = re.findall(rf"\b{name}\b(?!: )(?:\.(\w+))?", source)
    ways = {_WAYS.get(way, "") for way in after}
    if name in _SEARCHED:
        return ("search",)
    return tuple(sorted(ways)) if ways and "" not in ways else ("find_all",)


def _of_calls() -> Iterator[Used]:
    """Yield what functions give to `re` as it is written there."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of = node.func.value
            if isinstance(of, ast.Name) and of.id == "re" and node.args:
                text = node.args[0]
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    mode = _WAYS.get(node.func.attr)
                    where = f"{path.relative_to(_PACKAGE)}:{node.lineno}"
                    if node.func.attr != "escape" and node.func.attr != "compile":
                        yield Used(where, text.value, 0, (mode or "find_all",))


def _of_logs() -> Iterator[Used]:
    for source in SOURCES:
        for number, one in enumerate(source.patterns):
            where = f"logs: {source.name}, line {number + 1}"
            yield Used(where, one.line, 0, ("search",))
            if one.cells:
                yield Used(f"{where}, cells", one.cells, 0, ("find_all",))
            if one.others:
                yield Used(f"{where}, others", one.others, 0, ("full_match",))
        for mark in source.marks:
            yield Used(f"logs: {source.name}, a mark", mark, 0, ("search",))
