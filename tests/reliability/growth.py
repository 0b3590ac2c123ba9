"""How the work of a regular expression grows with the text: pumps made of the expression itself.

A pump is a part of what the pattern matches, many times over, behind what leads up to it and before
what makes the match fail. Where two sizes of the same pump take steps in the ratio of the sizes,
the pattern is linear on it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from tests.reliability.patterns import Used
from tests.reliability.stepper import Parsed, Stepper, TooManyStepsError, character
from tests.reliability.tally import Patterns

SIZES: Final = (120, 480)
"""Characters of the smaller and the larger text."""
LARGER: Final = (600, 2400)
"""And where that grows: a repeat of at most 200 characters is linear beyond these."""
ALLOWED: Final = 1.6
"""How much more than the sizes steps may grow: what begins only in the larger text."""
_PREFERRED: Final = ("a0 ", "0a ", " 0a", "A.-", ",:=", "_/\t", "[(|", "<'\"")
_MISFIT: Final = "\x01"
_MOST_PUMPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Grown:
    """The pump on which a pattern's steps grew most, and by how much more than the text."""

    pattern: str
    ratio: float = 0.0
    steps_per_character: float = 0.0
    pump: tuple[str, str, str] = ("", "", "")
    pumps: int = 0


def growth(
    pattern: str,
    flags: int = 0,
    modes: tuple[str, ...] = ("find_all",),
    most_pumps: int = _MOST_PUMPS,
) -> Grown:
    """Return how the steps of ``pattern`` grow at most, over its pumps and ways to match.

    Of more pumps than ``most_pumps`` as many are chosen, the same each time.
    """
    worst, count = Grown(pattern), 0
    stepper = Stepper(pattern, flags)
    pumps = list(islice(pumps_of(stepper), _MOST_PUMPS))
    if len(pumps) > most_pumps:
        pumps = random.Random(0).sample(pumps, most_pumps)
    for pump in pumps:
        count += 1
        for mode in modes:
            for sizes in (SIZES, LARGER):
                small, large = (_steps(stepper, mode, _text(pump, size)) for size in sizes)
                ratio = math.inf if math.isinf(large) else large / small / (sizes[1] / sizes[0])
                if ratio <= ALLOWED:
                    break
            if ratio > worst.ratio:
                worst = Grown(pattern, ratio, large / sizes[1], pump)
        if worst.ratio > ALLOWED:
            break
    return Grown(pattern, worst.ratio, worst.steps_per_character, worst.pump, count)


def measure_patterns(used: Sequence[Used], most_pumps: int = _MOST_PUMPS) -> list[Patterns]:
    """Return how the steps of patterns grew, by the room that they are of."""
    tallies: dict[str, Patterns] = {}
    for one in used:
        tally = tallies.setdefault(one.room, Patterns(one.room))
        found = growth(one.pattern, one.flags, one.modes, most_pumps)
        tally.n_patterns += 1
        tally.n_pumps += found.pumps
        tally.ratio = max(tally.ratio, found.ratio)
        if found.ratio > ALLOWED:
            tally.beyond.append(f"{one.where}: {found}")
    return sorted(tallies.values(), key=lambda tally: tally.name)


def _text(pump: tuple[str, str, str], size: int) -> str:
    before, body, after = pump
    return before + body * (size // len(body) + 1) + after


def _steps(stepper: Stepper, mode: str, text: str) -> float:
    stepper.steps, stepper.most = 0, 2000 * len(text)
    try:
        getattr(stepper, mode)(text)
    except TooManyStepsError:
        return math.inf
    return stepper.steps


def pumps_of(stepper: Stepper) -> Iterator[tuple[str, str, str]]:
    """Yield texts before, in and after what is repeated, each once."""
    seen = set()
    for before, body, after in _all_pumps(stepper):
        if not body or len(body) > SIZES[0] // 2:
            continue
        # "aaaa" many times over is "a" many times over.
        pump = before, body[: (body + body).index(body, 1)], after
        if pump not in seen:
            seen.add(pump)
            yield pump


def _all_pumps(stepper: Stepper) -> Iterator[tuple[str, str, str]]:
    misfits = [_MISFIT, "", *_excluded(stepper.parsed, stepper.flags)]
    for preferred in _PREFERRED:
        for before, sequence, flags in _sequences("", stepper.parsed, stepper.flags, preferred):
            pieces = _pieces(sequence, flags, preferred)
            for first in range(len(pieces)):
                ahead = before + "".join(pieces[:first])
                for last in (first + 1, first + 2, len(pieces)):
                    body = "".join(pieces[first:last])
                    for begin in {ahead, ""}:
                        for misfit in misfits:
                            yield begin, body, misfit
            for last in range(2, len(pieces)):
                for misfit in misfits:
                    yield "", "".join(pieces[:last]), misfit


def _excluded(parsed: Parsed, flags: int) -> set[str]:
    """Return what a pattern says that it does not match: characters, texts that may not follow."""
    found: set[str] = set()
    for item in parsed:
        name, value = str(item[0]), item[1]
        if name == "NOT_LITERAL":
            found.add(chr(value))
        elif name == "IN" and str(value[0][0]) == "NEGATE":
            found |= {chr(own) for op, own in value[1:2] if str(op) == "LITERAL"}
        elif name == "ASSERT_NOT" and value[0] > 0:
            found.add(sample(list(value[1]), flags, _PREFERRED[0]))
        for inner, own in _inside(item, flags):
            found |= _excluded(inner, own)
    return found


def _pieces(sequence: Parsed, flags: int, preferred: str) -> list[str]:
    """Return a text for each part of a sequence, one for letters that follow one another."""
    pieces: list[str] = []
    is_literal = False
    for item in sequence:
        piece, was_literal = sample([item], flags, preferred), is_literal
        is_literal = str(item[0]) == "LITERAL"
        if is_literal and was_literal:
            pieces[-1] += piece
        elif piece:
            pieces.append(piece)
    return pieces


def _sequences(
    before: str, sequence: Parsed, flags: int, preferred: str
) -> Iterator[tuple[str, Parsed, int]]:
    """Yield every sequence of a pattern, the nested ones too, behind what leads up to it."""
    yield before, sequence, flags
    for item in sequence:
        for inner, own in _inside(item, flags):
            yield from _sequences(before, inner, own, preferred)
        before += sample([item], flags, preferred)


def _inside(item: tuple[Any, Any], flags: int) -> list[tuple[Parsed, int]]:
    name, value = str(item[0]), item[1]
    if name == "SUBPATTERN":
        return [(list(value[3]), (flags | value[1]) & ~value[2])]
    if name == "BRANCH":
        return [(list(inner), flags) for inner in value[1]]
    if name.endswith("_REPEAT"):
        return [(list(value[2]), flags)]
    if name in ("ASSERT", "ASSERT_NOT"):
        return [(list(value[1]), flags)]
    return [(list(value), flags)] if name == "ATOMIC_GROUP" else []


def sample(sequence: Parsed, flags: int, preferred: str) -> str:
    """Return a text that a sequence matches; what it looks ahead to is taken with it."""
    found = ""
    for item in sequence:
        name, value = str(item[0]), item[1]
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            found += _character(item, flags, preferred)
        elif name == "BRANCH":
            branches = value[1]
            place = ord(preferred[0]) % len(branches)
            found += sample(list(branches[place]), flags, preferred)
        elif name.endswith("_REPEAT"):
            count = max(value[0], min(2, int(value[1])))
            found += sample(list(value[2]), flags, preferred) * count
        elif name == "ASSERT" and value[0] > 0 and preferred in _PREFERRED[::2]:
            found += sample(list(value[1]), flags, preferred)
        elif name not in ("ASSERT", "ASSERT_NOT"):
            for inner, own in _inside(item, flags):
                found += sample(inner, own, preferred)
    return found


def _character(item: tuple[Any, Any], flags: int, preferred: str) -> str:
    if str(item[0]) == "LITERAL":
        return chr(item[1])
    is_one = character(*item, flags)
    ascii_texts = (chr(code) for code in range(32, 127))
    return next((one for one in (*preferred, *ascii_texts) if is_one(one)), "─")
