"""Names of ranges and operators: without what makes each unique, by words, and as phases.

`emit_nvtx` gives nearly every range a name of its own ("aten::mm, op_id = 4711"): what looks at
names looks at columns of them here, not at one after the other.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import places_of
from traceprof.model.table import Names, Table, objects
from traceprof.model.timing import OWN_DOMAIN

_PATTERN: Final = r"(, (seq|op_id) = \d+|, sizes = \[[^=\n]*\]|, input_op_ids = [^=\n]*){1,4}$"
_DECORATIONS: Final = re.compile(_PATTERN)
_PYPROF: Final = r"^\{'mod': '([^']*)', 'op': '([^']*)', .*\}$"
"""What PyProf and its kin write as a range: a dictionary with all arguments of a function."""
_FUNCTION: Final = re.compile(_PYPROF)
_STACK: Final = r"^\{'traceMarker': \['([^']*)'.*$"
"""And around it where it was called from, the outermost line first: that stands for it."""
_CALLER: Final = re.compile(_STACK)

_NUMBERED: Final = re.compile(r"(^|(?<=[\s#:=(\[,]))\d+(?=$|[\s#:=)\],])")
_ONE_OF_MANY: Final = (
    # An address or a long number in hexadecimal; "#12"; the number of a step, also "[3/100]".
    (r"\b0[xX][0-9a-fA-F]+\b", ""),
    (r"\s*#\s*\d+", ""),
    (
        r"((?:^|[^a-zA-Z])(?:[a-zA-Z]+_)?(?:[Ss]tep|[Ii]ter|[Ii]teration|[Ee]poch|(?:[Mm]icro_?)?"
        r"[Bb]atch))[\s_:=\[(/-]*\d+(?:\s*(?:/|of)\s*\d+)?(?:[\])]|\b)",
        r"\1",
    ),
)
"""What tells one time that something runs from the next, and what to put there."""

DECORATED: Final = ", seq = 0"
"""Stands for any decoration: no rule about names looks at the numbers in it."""

_NUMBER_OF_DECORATION: Final = r"(, (?:seq|op_id) = )\d+"
_LOOKS_AT_NUMBERS: Final = re.compile(r"[0-9{]|\\d\\d")
"""Patterns that may tell one number from another."""


T = TypeVar("T")
Texts = npt.NDArray[np.object_]
UNCLAIMED: Final = "outside any phase"
PROFILER: Final = "profiler"
"""Stands for a phase where it was the profiler itself that took the time."""
PHASES: Final = (
    *("data", "h2d", "forward", "eval", "backward", "communication", "optimizer"),
    PROFILER,
)
WINDOW: Final = "traceprof.window"
"""The range of the embedded recorder around what it records."""
CYCLE: Final = "traceprof.cycle"
"""The range around what one of several recordings of a process has: between them there is none."""
PROFILER_RANGES: Final = ("traceprof.window.start", "traceprof.window.stop")
"""Where the embedded recorder opens and closes its windows."""
_OWN: Final = {
    "data": "data",
    "h2d": "h2d",
    "forward": "forward",
    "eval": "eval",
    "backward": "backward",
    "optimizer": "optimizer",
    "zero_grad": "optimizer",
    **dict.fromkeys(PROFILER_RANGES, PROFILER),
}
_BY_HAND: Final = tuple(
    (phase, re.compile(pattern, re.IGNORECASE))
    for phase, pattern in (
        (
            "data",
            # Not "batch" alone: that is a step.
            r"((get|load(ing)?|fetch(ing)?|read(ing)?|next|wait(ing)?( for)?)[ _]?(the[ _])?"
            r"(next[ _])?(data|batch|inputs?)|data"
            r"|(data|batch|input)[ _]?(load(ing|er)?|fetch(ing)?|wait(ing)?)"
            r"([ _.](wait|next|iter(ation)?))?)"
            r"|enumerate\(DataLoader\)#.*",
        ),
        (
            "h2d",
            r"(cuda)?(memcpy|copy|copies|transfer)?[ _]?(h2d|htod|host[ _]?(to|2)[ _]?device)"
            r"([ _]?(memcpy|copy|copies|transfers?))?"
            r"|((copy|copying|move|moving|transfer|send)[ _])?((the[ _])?(data|batch|inputs?)[ _])?"
            r"to[ _](the[ _])?(gpu|device|cuda)"
            r"|(data|batch|inputs?)[ _](copy|copies|copying|transfers?|move)"
            r"([ _]to[ _](gpu|device|cuda))?"
            r"|(copy|copying|transfer|move)[ _](the[ _])?(data|batch|inputs?)",
        ),
        (
            "forward",
            r"(model[ _.])?(forward|fwd)([ _]?(pass|step))?|(Distributed|Fully)\w+\.forward",
        ),
        ("eval", r"(eval(uat(e|ion))?|validat(e|ion))([ _]?(step|loop|epoch|pass))?"),
        ("backward", r"(loss[ _.])?(backward|bwd)([ _]?(pass|step))?"),
        (
            "communication",
            r"(nccl:|gloo:)?(all[ _]?reduce|reduce[ _]?scatter|all[ _]?gather"
            r"|comms?([ _.:-].*)?|communicat(e|ion|ions|ing)([ _.:-].*)?)",
        ),
        (
            "optimizer",
            r"(optimi[sz]er?|opt)([ _.]?step)?|(weight|param(eter)?)s?[ _]update"
            r"|update[ _](the[ _])?(weight|param(eter)?)s"
            r"|((optimi[sz]er|opt)[ _.])?zero[ _]?grad(#.*)?|Optimizer\.(step|zero_grad)#.*",
        ),
    )
)


FEWEST_FOR_ARROW = 10_000
"""Of fewer names, all files together, Python's own patterns cost less than to import Arrow."""
_FEW: Final = 500
"""For so few at a time they are as quick even where it is there."""


@dataclass
class _Met:
    """How many names were looked at so far: the ranks of a run add up."""

    n_names: int = 0


_met: Final = _Met()


@dataclass(eq=False)
class _Once(Generic[T]):
    """A function that looks at the names in an array, once for as long as that lives."""

    function: Callable[[Texts], T]
    known: dict[int, tuple[weakref.ref[Texts], T]] = field(default_factory=dict)

    def __call__(self, names: Texts) -> T:
        key = id(names)
        found = self.known.get(key)
        if found is not None and found[0]() is names:
            return found[1]
        result = self.function(names)
        self.known[key] = weakref.ref(names, lambda _: self.known.pop(key, None)), result
        return result


def plain_name(name: str) -> str:
    """Return a name without what `emit_nvtx` adds: sequence and operator numbers, shapes.

    Of the dictionaries that PyProf writes it is the function: "torch.nn.functional.linear", of its
    stacks the outermost line of the program: "train.py:34".
    """
    return _CALLER.sub(r"\1", _FUNCTION.sub(r"\1.\2", _DECORATIONS.sub("", name)))


def plain_names(names: Names) -> Names:
    """Return the plain names of a column, their texts sorted; each distinct one is read once."""
    distinct, codes = plain_categories(names.texts)
    place = names.by_text(codes)
    if len(names) < len(codes):
        is_used = np.bincount(place, minlength=len(distinct)) > 0
        distinct, place = distinct[is_used], (np.cumsum(is_used) - 1)[place]
    return Names(place, distinct)


def unnumbered_names(names: Names) -> Names:
    """Return the plain names of a column without numbers that stand alone.

    "step 12" and "step 13" are both "step *"; numbers in words stay: "layer_3", "conv2d".
    """
    plain = plain_names(names)
    texts = [_NUMBERED.sub("*", name) for name in plain.texts.tolist()]
    return Names.coded(texts, plain.codes, is_sorted=True)


def plain_categories(names: Texts) -> tuple[Texts, npt.NDArray[np.int64]]:
    """Return the distinct plain names among ``names``, sorted, and which of them each has."""
    distinct, codes, _ = _plain(names)
    return distinct, codes


def are_decorated(names: Texts) -> npt.NDArray[np.bool_]:
    """Return which of ``names`` are not plain."""
    return _plain(names)[2]


@_Once
def _plain(
    names: Texts,
) -> tuple[Texts, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the distinct plain names, sorted, which each has, and whether it differs from it."""
    if _as_arrow(names) is None:
        given, plain, place = names, objects(map(plain_name, names)), None
    else:
        alike, place = _alike_at_their_end(names)
        bare = _compute().replace_substring_regex(alike, _PATTERN, "")
        bare = _compute().replace_substring_regex(bare, _PYPROF, r"\1.\2")
        bare = _compute().replace_substring_regex(bare, _STACK, r"\1")
        given, plain = _objects(alike), _objects(bare)
    distinct, codes = _distinct(plain)
    is_decorated = np.asarray(given != plain, np.bool_)
    if place is not None:
        codes, is_decorated = codes[place], is_decorated[place]
    return distinct, codes, is_decorated


def _distinct(texts: Texts) -> tuple[Texts, npt.NDArray[np.int64]]:
    """Return the distinct ones of ``texts``, sorted, and which of them each is."""
    names = Names.of(texts)
    return names.texts, names.codes.astype(np.int64)


def _objects(texts: Any) -> Texts:
    return np.asarray(texts.to_numpy(zero_copy_only=False), object)


@_Once
def common_categories(names: Texts) -> tuple[Texts, npt.NDArray[np.int64]]:
    """Return the distinct common names among ``names``, sorted, and which of them each has.

    A common name is a plain one without numbers of steps and occurrences and without addresses:
    "step 12", "step 13" are both "step". Numbers of layers and the like stay.
    """
    plain, place = plain_categories(names)
    given = plain
    found = _as_arrow(plain)
    for pattern, instead in _ONE_OF_MANY:
        if found is None:
            own = re.compile(pattern)
            plain = objects(own.sub(instead, name) for name in plain)
        else:
            found = _compute().replace_substring_regex(found, pattern, instead)
    if found is not None:
        plain = _objects(found)
    # What is nothing but a number keeps a name.
    bare = objects(name.strip() for name in plain)
    stripped = np.where((bare == "") & (given != ""), "#", bare)
    distinct, codes = _distinct(stripped)
    return distinct, codes[place]


def codes_containing(names: Texts, words: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return which of ``names`` contain one of ``words``, upper or lower case."""
    pattern = "|".join(map(re.escape, words))
    found = _as_arrow(names)
    if found is None:
        own = re.compile(pattern, re.IGNORECASE)
        return np.flatnonzero([own.search(str(name)) is not None for name in names])
    return np.flatnonzero(_matches(names, pattern, ignore_case=True))


def are_matched(names: Texts, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Return in which of ``names`` ``pattern`` is found."""
    if _as_ascii(names) is None:
        return np.array([pattern.search(str(name)) is not None for name in names], np.bool_)
    return _matches(names, pattern.pattern, ignore_case=bool(pattern.flags & re.IGNORECASE))


def _matches(names: Texts, pattern: str, *, ignore_case: bool = False) -> npt.NDArray[np.bool_]:
    """Return in which names a pattern is found; in names that differ in decorations alone, once."""
    if _LOOKS_AT_NUMBERS.search(pattern):
        found = _compute().match_substring_regex(_as_arrow(names), pattern, ignore_case=ignore_case)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
    alike, place = _alike(names)
    found = _compute().match_substring_regex(alike, pattern, ignore_case=ignore_case)
    return np.asarray(found.to_numpy(zero_copy_only=False)[place], np.bool_)


def numbers_in(names: Texts, pattern: re.Pattern[str]) -> npt.NDArray[np.int64]:
    """Return the number that the one group of ``pattern``, ``number``, finds in each name; or -1.

    It must find whole numbers of at most 18 digits.
    """
    found = _as_ascii(names)
    if found is None:
        matches = [pattern.search(str(name)) for name in names]
        numbers = [int(match["number"]) if match else -1 for match in matches]
        return np.array(numbers, np.int64)
    texts = _compute().struct_field(_compute().extract_regex(found, pattern.pattern), [0])
    return np.asarray(_compute().fill_null(texts.cast("int64"), -1).to_numpy(), np.int64)


@_Once
def _alike_at_their_end(names: Texts) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return the distinct names, with 0 for the number that a decoration at their end has.

    And which of them each is.
    """
    found = _as_arrow(names)
    bare = _compute().ascii_rtrim(found, characters="0123456789")
    is_decorated = _compute().and_(
        _compute().not_equal(bare, found),
        _compute().or_(
            _compute().ends_with(bare, ", op_id = "), _compute().ends_with(bare, ", seq = ")
        ),
    )
    alike = _compute().if_else(
        is_decorated, _compute().binary_join_element_wise(bare, "0", ""), found
    )
    encoded = alike.dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


@_Once
def _alike(names: Texts) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return the same with 0 for all numbers that decorations have: see `DECORATED`."""
    at_end, place = _alike_at_their_end(names)
    alike = (
        _compute()
        .replace_substring_regex(at_end, _NUMBER_OF_DECORATION, r"\10")
        .dictionary_encode()
    )
    return alike.dictionary, alike.indices.to_numpy().astype(np.int64)[place]


@_Once
def _as_ascii(names: Texts) -> Any:
    """Return the names for Arrow where it reads patterns as Python does: of ASCII alone."""
    found = _as_arrow(names)
    is_plain = (
        found is not None and _compute().all(_compute().string_is_ascii(found)).as_py() is not False
    )
    return found if is_plain else None


@_Once
def _as_arrow(names: Texts) -> Any:
    """Return the names for Arrow; None where they are few, or one of them is no Unicode text."""
    _met.n_names += len(names)
    if _met.n_names < FEWEST_FOR_ARROW or len(names) < min(_FEW, FEWEST_FOR_ARROW):
        return None
    import pyarrow as pa  # noqa: PLC0415

    try:
        return pa.array(names, pa.string())
    except (UnicodeEncodeError, pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _compute() -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc


@lru_cache(maxsize=1 << 16)  # the files of a run use the same names
def phase_of(name: str, domain: str) -> str | None:
    """Return the phase that a range of this name stands for, None where it stands for none."""
    if domain == OWN_DOMAIN:
        # Optimizers after the first bear a number.
        plain = name.partition("#")[0]
        return "communication" if name.startswith("comm:") else _OWN.get(plain)
    for phase, pattern in _BY_HAND:
        if pattern.fullmatch(name.strip(" #")):
            return phase
    return None


def phases_of_ranges(ranges: Table) -> npt.NDArray[np.int64]:
    """Return, for each range, the place of its phase in `PHASES`, -1 where it is none."""
    names, domains = ranges["name"], ranges["domain"]
    plain, code = plain_categories(names.texts)
    # A name's kind: its plain name, and whether anything was added to it.
    kind = names.by_text(2 * code + are_decorated(names.texts))
    n_domains = max(len(domains.texts), 1)
    place, distinct = places_of(kind * n_domains + domains.codes)
    found = np.full(len(distinct), -1, np.int64)
    for i, (kind_of, domain) in enumerate(divmod(pair, n_domains) for pair in distinct):
        name = plain[kind_of // 2] + (DECORATED if kind_of % 2 else "")
        phase = phase_of(name, domains.texts[domain])
        found[i] = -1 if phase is None else PHASES.index(phase)
    return np.asarray(found[place], np.int64)
