"""Numbers of less than 64 bits are made in few modules: there nobody adds to them.

All else keeps small numbers `Packed`, which mypy lets nobody compute with.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.requirements import ROOT

NARROW: Final = frozenset(
    ("int8", "int16", "int32", "uint8", "uint16", "uint32", "min_scalar_type")
)
BYTES: Final = "bytes of a file, of a picture or of the memory of C"
MAKE_THEM: Final = {
    "traceprof/model/packed.py": "Packed itself",
    "traceprof/model/compact.py": "codes of few values, whole floats",
    "traceprof/model/grouping.py": "a table of rows by number, into int64; views of bools",
    "traceprof/model/intervals.py": "keys that are sorted by their digits",
    "traceprof/measures/collectives/matches.py": "a place among the ways of matching",
    "traceprof/measures/steps/from_kernels.py": "counts up to the 1024 that are drawn",
    "traceprof/formats/kineto/columns.py": BYTES,
    "traceprof/formats/kineto/events.py": "codes of texts, which only choose",
    "traceprof/formats/kineto/parse.py": "codes of texts, which only choose",
    "traceprof/formats/tables/columns.py": "codes of an Arrow dictionary",
    "traceprof/cache/scratch.py": BYTES,
    "traceprof/formats/sqlite/pages/blocks.py": BYTES,
    "traceprof/formats/sqlite/pages/tree.py": BYTES,
    "traceprof/model/names.py": BYTES,
    "traceprof/render/page/document.py": BYTES,
    "traceprof/render/pictures/figure.py": BYTES,
    "traceprof/render/pictures/lines.py": BYTES,
    "traceprof/render/timeline/encode.py": BYTES,
    "traceprof/viewer/panes.py": BYTES,
    "traceprof/workers/spill.py": BYTES,
}
"""Module → what it uses them for."""

STORED: Final = {
    "traceprof/model/packed.py",
    "traceprof/model/compact.py",
    "traceprof/model/grouping.py",
    "traceprof/model/names.py",
    "traceprof/model/table.py",
    "traceprof/measures/collectives/blame.py",
    "traceprof/measures/idle/charges.py",
    "traceprof/measures/idle/gaps.py",
    "traceprof/session/kept_answers.py",
    "traceprof/viewer/timeline.py",
}
"""Modules that look at the numbers as `Packed` stores them: to repeat, to choose or to write."""


def modules(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules that have one of ``words`` in them, parsed."""
    for path in sorted(Path(ROOT, "traceprof").rglob("*.py")):
        text = path.read_text("utf-8")
        if "_traceprof_runtime" not in path.parts and any(word in text for word in words):
            yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def test_small_types_are_made_where_nobody_adds_to_them() -> None:
    found = {
        name
        for name, tree in modules(*(f"np.{kind}" for kind in NARROW))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in NARROW
        and isinstance(node.value, ast.Name)
        and node.value.id == "np"
    }
    assert found == set(MAKE_THEM)


def test_what_packed_numbers_store_is_looked_at_in_few_modules() -> None:
    assert {name for name, tree in modules(".stored") if looks_at_stored(tree)} == STORED


def looks_at_stored(tree: ast.Module) -> bool:
    """Return whether something is named ``.stored`` that is no method, as `Table.stored` is."""
    nodes = [*ast.walk(tree)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return any(
        isinstance(node, ast.Attribute) and node.attr == "stored" and id(node) not in called
        for node in nodes
    )
