"""The JavaScript of the page: small modules in `assets/`, joined into one script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Final

__all__ = ["module_order", "read_asset", "timeline_script"]

_IMPORT: Final = re.compile(r'^import\s[^;]*?from "\./([a-z_]+\.mjs)";\n', re.MULTILINE)
_RE_EXPORT: Final = re.compile(r"^export \{[^}]*\};\n", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)


def read_asset(name: str) -> str:
    """Return the text of a file of this package's `assets/`."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


@cache
def timeline_script(entry: str = "main.mjs") -> str:
    """Return ``entry`` with all that it imports as one script.

    The modules share one scope there, so a name at their top level must be unique (a test
    checks it); run by themselves, under node, they are ordinary ES modules.
    """
    bodies = (_without_imports(read_asset(name)) for name in module_order(entry))
    return '"use strict";\n(() => {\n' + "".join(bodies) + "})();\n"


def module_order(entry: str) -> tuple[str, ...]:
    """Return the modules that ``entry`` needs, each after those that it imports."""
    done: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        for imported in _imports(name):
            if imported not in done and imported not in above:
                visit(imported, (*above, name))
        done[name] = None

    visit(entry, ())
    return tuple(done)


def _imports(name: str) -> Iterator[str]:
    return (match.group(1) for match in _IMPORT.finditer(read_asset(name)))


def _without_imports(source: str) -> str:
    return _EXPORT.sub("", _RE_EXPORT.sub("", _IMPORT.sub("", source)))
