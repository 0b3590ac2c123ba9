"""A house that fits in a head: how large the package is, and how far a command walks through it."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.requirements import ROOT

PACKAGE = ROOT / "traceprof"
MOST_FUNCTION_LINES, MOST_P90_LINES, MOST_MODULE_LINES = 110, 25, 450


@pytest.fixture(scope="module")
def shape() -> ModuleType:
    loader = SourceFileLoader("shape", str(ROOT / "scripts" / "shape"))
    spec = spec_from_loader("shape", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def limits() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "tests" / "size_limits.toml").read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def numbers(shape: ModuleType) -> dict[str, float]:
    return dict(shape.shape_of(PACKAGE))


def test_the_package_is_as_large_as_its_limits_say(
    shape: ModuleType, numbers: dict[str, float], limits: dict[str, Any]
) -> None:
    """Statements are counted, not lines: documentation never makes a change too large."""
    assert numbers[shape.STATEMENTS] <= limits["statements"]
    assert numbers[shape.MODULES] <= limits["modules"]
    rooms = shape.statements_by_room(PACKAGE)
    assert {room: n for room, n in rooms.items() if n > limits["rooms"].get(room, 0)} == {}
    assert sum(limits["rooms"].values()) == limits["statements"]


def test_names_have_words_of_the_field(
    shape: ModuleType, numbers: dict[str, float], limits: dict[str, Any]
) -> None:
    """The list is in scripts/shape; `own` and `told` fit every value, so they name none."""
    assert numbers[shape.PRIVATE_WORDS] <= limits["private_words_per_1000_lines"]


def test_no_function_and_no_module_is_too_long(
    shape: ModuleType, numbers: dict[str, float]
) -> None:
    assert numbers[shape.LONGEST_FUNCTION] <= MOST_FUNCTION_LINES
    assert numbers[shape.P90] <= MOST_P90_LINES
    assert numbers[shape.LONGEST] <= MOST_MODULE_LINES


def test_no_module_is_a_fragment_and_none_are_in_a_circle(
    shape: ModuleType, numbers: dict[str, float]
) -> None:
    assert shape.fragments(PACKAGE) == []
    assert numbers[shape.CIRCLES] == 0


def test_no_two_public_classes_have_one_name() -> None:
    """But those of `traceprof.api`, which show what is inside to Python, and what callbacks are."""
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        if {"inject", "integrations"} & {*path.parts} or path.parent == PACKAGE / "api":
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_show_breakdown_stays_short(
    shape: ModuleType, tmp_path: Path, limits: dict[str, Any]
) -> None:
    found = shape.way_of_commands(ROOT, shape.small_trace(tmp_path), commands=("show breakdown",))
    assert found["`show breakdown`: functions"] <= limits["breakdown_functions"]
    assert found["`show breakdown`: modules"] <= limits["breakdown_modules"]
