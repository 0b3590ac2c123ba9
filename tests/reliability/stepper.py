"""A matcher of regular expressions that backtracks as Python's does, and counts its steps.

Python's own engine does not say how long it looks, and its time depends on the machine. This one
runs what `re` parses as a program with a stack of places to go back to; a step is one instruction.
It knows fewer short cuts than Python's, so that what is linear here is linear there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

Parsed = Sequence[tuple[Any, Any]]
_Instruction = tuple[Any, ...]
_UNBOUNDED: Final = 1 << 20


class TooManyStepsError(Exception):
    """A search takes more steps than it may."""


class Stepper:
    """A pattern as a program; ``steps`` are those that were taken so far."""

    def __init__(self, pattern: str, flags: int = 0, most: int = 10**9) -> None:
        parsed = parser.parse(pattern, flags)
        self.flags = parsed.state.flags
        self.parsed: Parsed = list(parsed)
        self.program = _program(self.parsed, self.flags)
        self.most = most
        self.steps = 0
        self._captured: dict[Any, int] = {}

    def find_all(self, text: str) -> list[tuple[int, int]]:
        """Return the spans that `re.finditer` finds."""
        found, place, after_empty = [], 0, -1
        while place <= len(text):
            end = self._run(self.program, text, place, {}, place if after_empty == place else -1)
            if end is None:
                place += 1
                continue
            found.append((place, end))
            after_empty = end
            place = end
        return found

    def search(self, text: str) -> int | None:
        """Return where the match that `re.search` finds begins."""
        ends = (self._run(self.program, text, place, {}) for place in range(len(text) + 1))
        return next((place for place, end in enumerate(ends) if end is not None), None)

    def full_match(self, text: str) -> bool:
        """Return whether `re.fullmatch` does."""
        program = [*self.program[:-1], ("at", lambda t, i: i == len(t)), ("end",)]
        return self._run(program, text, 0, {}) is not None

    def match(self, text: str) -> int | None:
        """Return where `re.match` ends."""
        return self._run(self.program, text, 0, {})

    def _run(
        self,
        program: list[_Instruction],
        text: str,
        place: int,
        groups: dict[Any, Any],
        not_end: int = -1,
    ) -> int | None:
        """Return the end of a match that begins at ``place``; None where there is none."""
        stack: list[tuple[int, int, dict[Any, Any]]] = []
        at, size = 0, len(text)
        while True:
            self.steps += 1
            if self.steps > self.most:
                raise TooManyStepsError
            op = program[at]
            kind = op[0]
            is_well = True
            if kind == "char":
                is_well = place < size and op[1](text[place])
                place += 1
            elif kind == "split":
                stack.append((op[2], place, groups))
                at = op[1]
                continue
            elif kind == "jump":
                at = op[1]
                continue
            elif kind == "set":
                groups = groups | {op[1]: place}
            elif kind == "moved":
                is_well = groups[op[1]] != place
            elif kind == "at":
                is_well = op[1](text, place)
            elif kind in ("atomic", "look", "group"):
                is_well, place, groups = self._inner(op, text, place, groups)
            elif kind == "end" and place != not_end:
                self._captured = groups
                return place
            else:
                is_well = False
            if is_well:
                at += 1
                continue
            if not stack:
                return None
            at, place, groups = stack.pop()

    def _inner(
        self, op: _Instruction, text: str, place: int, groups: dict[Any, Any]
    ) -> tuple[bool, int, dict[Any, Any]]:
        """Return whether what stands by itself matches, where it ends, and what is captured."""
        if op[0] == "group":
            known = text[groups.get((op[1], 0), 0) : groups.get((op[1], 1), 0)]
            self.steps += len(known)
            return text.startswith(known, place), place + len(known), groups
        begin = place - op[3] if op[0] == "look" else place
        end = None if begin < 0 else self._run(op[1], text, begin, groups)
        if end is not None:
            groups = self._captured
        if op[0] == "look":
            return (end is not None) is op[2], place, groups
        return end is not None, place if end is None else end, groups


def _program(parsed: Parsed, flags: int) -> list[_Instruction]:
    code: list[_Instruction] = []
    _add(parsed, flags, code)
    return [*code, ("end",)]


def _add(parsed: Parsed, flags: int, code: list[_Instruction]) -> None:
    for op, value in parsed:
        name = str(op)
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            code.append(("char", character(op, value, flags)))
        elif name == "BRANCH":
            _add_branches(value[1], flags, code)
        elif name == "SUBPATTERN":
            number, added, removed, inner = value
            if number is not None:
                code.append(("set", (number, 0)))
            _add(inner, (flags | added) & ~removed, code)
            if number is not None:
                code.append(("set", (number, 1)))
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            _add_repeat(value, flags, code, is_lazy=name == "MIN_REPEAT")
        elif name == "POSSESSIVE_REPEAT":
            inner_code: list[_Instruction] = []
            _add_repeat(value, flags, inner_code, is_lazy=False)
            code.append(("atomic", [*inner_code, ("end",)]))
        elif name == "ATOMIC_GROUP":
            code.append(("atomic", _program(value, flags)))
        elif name in ("ASSERT", "ASSERT_NOT"):
            direction, inner = value
            width = inner.getwidth()[1] if direction < 0 else 0
            code.append(("look", _program(inner, flags), name == "ASSERT", width))
        elif name == "AT":
            code.append(("at", _place(str(value), flags)))
        elif name == "GROUPREF":
            code.append(("group", value))
        else:
            raise NotImplementedError(name)


def _add_branches(branches: Sequence[Parsed], flags: int, code: list[_Instruction]) -> None:
    jumps = []
    for inner in branches[:-1]:
        split = len(code)
        code.append(())
        _add(inner, flags, code)
        jumps.append(len(code))
        code.append(())
        code[split] = ("split", split + 1, len(code))
    _add(branches[-1], flags, code)
    for jump in jumps:
        code[jump] = ("jump", len(code))


def _add_repeat(value: Any, flags: int, code: list[_Instruction], *, is_lazy: bool) -> None:
    least, most, inner = value
    for _ in range(least):
        _add(inner, flags, code)
    splits = []

    def add_split() -> None:
        splits.append(len(code))
        code.append(())

    if int(most) > _UNBOUNDED:
        first = len(code)
        add_split()
        is_empty = inner.getwidth()[0] == 0
        if is_empty:
            code.append(("set", ("loop", first)))
        _add(inner, flags, code)
        if is_empty:
            code.append(("moved", ("loop", first)))
        code.append(("jump", first))
    else:
        for _ in range(int(most) - least):
            add_split()
            _add(inner, flags, code)
    for split in splits:
        ways = (split + 1, len(code))
        code[split] = ("split", *(reversed(ways) if is_lazy else ways))


def character(op: Any, value: Any, flags: int) -> Callable[[str], bool]:
    """Return what says whether a part of a pattern matches a character."""
    name = str(op)
    if name == "ANY":
        return (lambda _: True) if flags & re.DOTALL else (lambda text: text != "\n")
    items = value if name == "IN" else [(parser.LITERAL, value)]
    is_negated = name == "NOT_LITERAL" or str(items[0][0]) == "NEGATE"
    parts = [_item(op, of, flags) for op, of in items if str(op) != "NEGATE"]

    @cache
    def is_one(text: str) -> bool:
        ways = {text, text.lower(), text.upper()} if flags & re.IGNORECASE else {text}
        found = any(part(way) for part in parts for way in ways if len(way) == 1)
        return found is not is_negated

    return is_one


def _item(op: Any, value: Any, flags: int) -> Callable[[str], bool]:
    name = str(op)
    if name == "LITERAL":
        return lambda text: ord(text) == value
    if name == "RANGE":
        return lambda text: value[0] <= ord(text) <= value[1]
    classes = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
    what = str(value).removeprefix("CATEGORY_")
    own = re.compile(classes[what.removeprefix("NOT_")], flags & re.ASCII)
    is_in = not what.startswith("NOT_")
    return lambda text: (own.match(text) is not None) is is_in


def _place(name: str, flags: int) -> Callable[[str, int], bool]:
    is_multiline = flags & re.MULTILINE

    def is_word(text: str, place: int) -> bool:
        return 0 <= place < len(text) and (text[place].isalnum() or text[place] == "_")

    def boundary(text: str, place: int) -> bool:
        return is_word(text, place - 1) != is_word(text, place)

    if name in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        whole = name == "AT_BEGINNING_STRING" or not is_multiline
        return lambda text, i: i == 0 or (not whole and text[i - 1] == "\n")
    if name == "AT_END":
        return lambda text, i: (
            i == len(text) or (text[i] == "\n" and (bool(is_multiline) or i == len(text) - 1))
        )
    if name == "AT_END_STRING":
        return lambda text, i: i == len(text)
    return boundary if name == "AT_BOUNDARY" else lambda text, i: not boundary(text, i)
