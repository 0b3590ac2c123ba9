"""The colors stay apart for people who see colors differently (simulation: Machado 2009)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from traceprof.model.activity import PARTS, DeviceTime
from traceprof.render.palette import (
    CATEGORIES,
    CATEGORY_INDEX,
    HEAT,
    PART_STYLES,
    STATES,
    Category,
    category_of,
)

VISION = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
    "normal": np.eye(3).tolist(),
}
OKLAB_LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
DEVICE = [category for category in CATEGORIES if category.part is not None]


def _seen(color: str, vision: str) -> np.ndarray:
    srgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    lab: np.ndarray = np.array(OKLAB) @ np.cbrt(np.array(OKLAB_LMS) @ seen)
    return lab


def _distance(a: str, b: str, vision: str) -> float:
    return 100 * float(np.linalg.norm(_seen(a, vision) - _seen(b, vision)))


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_device_colors_stay_apart(vision: str, theme: str) -> None:
    for a, b in combinations(DEVICE, 2):
        distance = _distance(getattr(a, theme), getattr(b, theme), vision)
        assert distance > 5, (a.key, b.key, vision, distance)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_phases_of_training_stay_apart(vision: str, theme: str) -> None:
    ranges = [category for category in CATEGORIES if category.key.startswith("range")]
    for a, b in combinations(ranges, 2):
        distance = _distance(getattr(a, theme), getattr(b, theme), vision)
        assert distance > 6, (a.key, b.key, vision, distance)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_states_stay_apart(vision: str, theme: str) -> None:
    states = [CATEGORIES[CATEGORY_INDEX[key]] for key in STATES]
    for a, b in combinations(states, 2):
        distance = _distance(getattr(a, theme), getattr(b, theme), vision)
        assert distance > 5, (a.key, b.key, vision, distance)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(("theme", "page"), [("light", "#ffffff"), ("dark", "#171e28")])
def test_levels_of_heat_stay_apart_and_grow_away_from_the_middle(
    vision: str, theme: str, page: str
) -> None:
    colors = [getattr(level, theme) for level in HEAT]
    for a, b in combinations([*colors, page], 2):
        assert _distance(a, b, vision) > 5, (a, b, vision)
    lightness = np.array([_seen(color, vision)[0] for color in colors])
    away = -1 if theme == "light" else 1
    assert (np.diff(lightness[2:]) * away > 0).all()
    assert (np.diff(lightness[:3]) * away < 0).all()


def test_levels_of_heat_differ_without_color() -> None:
    assert len({level.glyph for level in HEAT}) == len({level.label for level in HEAT}) == len(HEAT)
    assert [level.least for level in HEAT] == sorted(level.least for level in HEAT)


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda c: c.key)
def test_a_category_says_in_words_what_it_is(category: Category) -> None:
    assert category.label
    assert CATEGORY_INDEX[category.key] == CATEGORIES.index(category)


def test_the_five_parts_have_colors_words_and_glyphs_of_their_own() -> None:
    assert tuple(part.key for part in PART_STYLES) == PARTS
    assert [part.category.label.lower() for part in PART_STYLES] == [
        part.label for part in PART_STYLES
    ]
    assert len({part.glyph for part in PART_STYLES}) == len(PARTS)


def test_the_states_are_those_of_the_definition() -> None:
    assert tuple(DeviceTime.nothing().states(0, 1)) == STATES


@pytest.mark.parametrize("category", [c for c in CATEGORIES if c.like], ids=lambda c: c.key)
def test_what_looks_like_another_has_its_colors(category: Category) -> None:
    like = category_of(category.like)
    assert (category.light, category.dark) == (like.light, like.dark)
