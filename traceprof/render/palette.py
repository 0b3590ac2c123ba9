"""The colours of traceprof, the same in every picture: light and dark, safe for colour-blind eyes.

The device colours are those of Okabe and Ito with a few neighbours; they were checked under
simulated protanopia, deuteranopia and tritanopia (tests/render/test_palette.py). Colour is
never the only carrier of a meaning: lanes, legends and hovers say the same in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from traceprof.model.activity import PARTS, Part


@dataclass(frozen=True, slots=True)
class Category:
    """A kind of event: its key, its name for people and its colour on light and dark.

    ``part`` is the part of a device's time that it occupies; None for what is on the host.
    ``like`` is the key of the category whose colour it has, where what is exposed of something
    looks like that ("" for a colour of its own).
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
"""Every category; those with a part are what a device does, the last six what state it is in."""

STATES: Final = (PARTS[0], "overlap", *PARTS[1:])
"""What a device is doing, each recorded instant exactly one of them, from the bottom of a stack."""
NOT_RECORDED: Final = "not_recorded"
"""The state of a device of which nothing was recorded: nobody knows what it did."""


@dataclass(frozen=True, slots=True)
class PartStyle:
    """How one of the five parts is shown: in words, as a glyph of a bar, in which colours.

    ``column`` of tables holds its time, and its colours are those of the category of its key.
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
"""The five parts of a device's time, in their order."""


@dataclass(frozen=True, slots=True)
class HeatLevel:
    """A level of a heat map: from which value on (a share), in words, as a glyph, its colours."""

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
"""Less and more than usual; the further from the middle, the further from the page in lightness."""

CATEGORY_INDEX: Final[Mapping[str, int]] = {key: i for i, key in enumerate(_BY_KEY)}
"""The place of each category in `CATEGORIES`, by its key."""


def ink_on(colour: str) -> str:
    """Return the colour of letters that is read best on ``colour`` ("#rrggbb")."""
    return max(_INKS, key=lambda ink: _contrast(ink, colour))


_INKS: Final = ("#ffffff", "#10151c")


def _contrast(one: str, other: str) -> float:
    """Return the ratio of contrast of two colours, 1 to 21, as WCAG 2 defines it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    shares = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def category_of(key: str) -> Category:
    """Return the category ``key``."""
    return _BY_KEY[key]
