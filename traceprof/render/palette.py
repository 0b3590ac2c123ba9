"""Define the colors of all pictures, for the light and dark theme and for color-blind people.

The colors of device activity are the palette of Okabe and Ito and a few similar colors. A test
checks them under simulated protanopia, deuteranopia, and tritanopia (tests/render/test_palette.py).
Color never is the only carrier of a meaning: lanes, legends, and hover texts state it in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from traceprof.model.activity import PARTS, Part


@dataclass(frozen=True, slots=True)
class Category:
    """A kind of event: its key, its label, and its colors in the light and dark theme.

    ``part`` is the part of GPU time that its events belong to; None for other events. ``like`` is
    the key of the category with the same color ("" for none): exposed transfers look like copies.
    """

    key: str
    label: str
    light: str
    dark: str
    part: Part | None = None
    like: str = ""


CATEGORIES: Final[tuple[Category, ...]] = (
    Category("compute", "Compute", "#0072B2", "#3D9BE0", Part.COMPUTE),
    Category("communication", "Communication", "#D55E00", "#F07A2B", Part.COMMUNICATION),
    Category("h2d", "Copy host → device", "#009E73", "#1FBF92", Part.TRANSFER),
    Category("d2h", "Copy device → host", "#56B4E9", "#8AD0F5", Part.TRANSFER),
    Category("p2p", "Copy device → device (peer)", "#8C2A2A", "#A65B11", Part.TRANSFER),
    Category("copy", "Copy, unknown direction", "#400610", "#62778C", Part.TRANSFER),
    Category("h2h", "Copy host → host", "#8A8F99", "#767D89"),
    Category("d2d", "Copy within device", "#CC79A7", "#E39BC6", Part.DEVICE_MEMORY),
    Category("memset", "Memset", "#B79F00", "#E2CB3A", Part.DEVICE_MEMORY),
    Category("range", "Range (NVTX)", "#B5C8CB", "#5873A3"),
    Category("mark", "Mark (instant)", "#5B4FC4", "#B0A6FF"),
    Category("range_data", "Range: data", "#FAEF90", "#846A2E"),
    Category("range_h2d", "Range: host to device", "#99D8FF", "#27495D"),
    Category("range_eval", "Range: evaluation", "#D3FBC9", "#686C68"),
    Category("range_forward", "Range: forward", "#A89CFB", "#2F58AE"),
    Category("range_backward", "Range: backward", "#C8AAE3", "#684B84"),
    Category("range_optimizer", "Range: optimizer", "#BEE2D9", "#405D4A"),
    Category("range_communication", "Range: communication", "#F5D0A8", "#86421E"),
    Category("range_profiler", "Range: profiler", "#EEB29D", "#652F36"),
    Category("host_op", "Host operator", "#B9D6CF", "#41675F"),
    Category("api", "CUDA API", "#9AA5B1", "#6C7A8A"),
    Category("sync", "Synchronization", "#D9B8A0", "#7D5C45"),
    Category("overhead", "Profiler overhead", "#E3A1A1", "#8C4B4B"),
    Category("overlap", "Compute with communication", "#3B2A7E", "#4A3FA8"),
    Category(
        "exposed_communication", "Exposed communication", "#D55E00", "#F07A2B", like="communication"
    ),
    Category("exposed_transfer", "Exposed transfer", "#009E73", "#1FBF92", like="h2d"),
    Category("device_memory", "Device memory", "#CC79A7", "#E39BC6", like="d2d"),
    Category("idle", "Idle", "#C9CED6", "#3A4452"),
    Category("not_recorded", "Not recorded", "#EDE8DC", "#241F1A"),
)
"""All categories: those with a part are device activity, the last six are states of a device."""

STATES: Final = (PARTS[0], "overlap", *PARTS[1:])
"""The states of a device, bottom of the stack first. At each recorded time it has exactly one."""
NOT_RECORDED: Final = "not_recorded"
"""The state of a device at times that were not recorded, when its activity is unknown."""


@dataclass(frozen=True, slots=True)
class PartStyle:
    """How one of the five parts is shown: its label, its glyph in a bar, and its ``category``.

    ``column`` is the name of the table column with its time. The category has its colors.
    """

    key: str
    label: str
    glyph: str
    column: str
    category: Category


_BY_KEY: Final = {item.key: item for item in CATEGORIES}
PART_STYLES: Final[tuple[PartStyle, ...]] = tuple(
    PartStyle(key, key.replace("_", " "), glyph, f"{key}_ns", _BY_KEY[key])
    for key, glyph in zip(PARTS, "█▓▒▪░", strict=True)
)
"""The five parts of GPU time, in their order."""


@dataclass(frozen=True, slots=True)
class HeatLevel:
    """A level of a heat map: its lower bound (excess as a ratio), label, glyph, and colors."""

    least: float
    label: str
    glyph: str
    light: str
    dark: str


HEAT: Final[tuple[HeatLevel, ...]] = (
    HeatLevel(float("-inf"), "over 10% faster", "v", "#2E7EBB", "#4FB0F5"),
    HeatLevel(-0.10, "3–10% faster", "-", "#9CC8E6", "#2C5F85"),
    HeatLevel(-0.03, "within 3%", "·", "#E4E8ED", "#2A3442"),
    HeatLevel(0.03, "3–10% slower", "░", "#F9C98A", "#6E4A1C"),
    HeatLevel(0.10, "10–30% slower", "▒", "#EE8733", "#B76A1B"),
    HeatLevel(0.30, "30–100% slower", "▓", "#B8440F", "#F59A3C"),
    HeatLevel(1.00, "2× or slower", "█", "#5E1405", "#FFE7A3"),
)
"""The levels from faster to slower. Contrast with the page increases with distance from 0."""

CATEGORY_INDEX: Final[Mapping[str, int]] = {key: i for i, key in enumerate(_BY_KEY)}
"""The index of each category in `CATEGORIES`, by its key."""


def ink_on(color: str) -> str:
    """Return the text color with the best contrast on ``color`` ("#rrggbb")."""
    return max(_INKS, key=lambda ink: _contrast(ink, color))


_INKS: Final = ("#ffffff", "#10151c")


def _contrast(color: str, other: str) -> float:
    """Return the contrast ratio of two colors, from 1 to 21, as defined in WCAG 2."""
    low, high = sorted((_luminance(color), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    """Return the relative luminance of a color, as defined in WCAG 2."""
    shares = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def category_of(key: str) -> Category:
    """Return the category with this key.

    Raises:
        KeyError: there is no such category.
    """
    return _BY_KEY[key]
