"""One figure, one answer: what every door says of a trace, and where two doors disagree.

    .venv/bin/python -m tests.truth.doors [--fresh] [--brief] [TRACE …]

prints, for each trace, each figure with what every door shows of it, and marks what is not the same
as at the first door that shows it, which is the page wherever that has it. Then it prints the
invariants that do not hold. Without traces it looks at all shared ones and those in fixtures/.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.real_traces import ALL, H100
from tests.requirements import ROOT, TRACES
from tests.truth.door_asking import Asker, asking
from tests.truth.door_exhibits import Exhibit
from tests.truth.door_figures import FINDERS, WITHIN, kind_of, named
from tests.truth.door_invariants import INVARIANTS
from tests.truth.door_reading import Reading, figures_in

__all__ = ["DOORS", "Answer", "answers_of", "disagreements", "traces"]

STEADY: Final = ("-w", "steady")
EVERY_ROW: Final = ("-n", "100000")
NOUNS: Final[Mapping[str, str]] = {
    "breakdown": "breakdown.devices",
    "steps": "steps.steps",
    "idle": "idle.causes",
}
TABLES: Final = (
    *(("kernels",), ("flops",), ("flops", "--by", "step"), ("ranks",)),
    *(("path",), ("path", "--by", "what-if")),
    *(("copies",), ("breakdown", "--by", "phase"), ("steps", "--by", "phase")),
)
"""Other tables: of what they say of steps, and that `-w steady` is the default."""


@dataclass(frozen=True, slots=True)
class Door:
    """A way to ask: its name, what of `FINDERS` it shows, a method of `Asker` and its arguments.

    ``is_steady``: it is the same door with `-w steady` typed.
    """

    name: str
    finders: str
    method: str
    words: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    is_steady: bool = False

    def shown(self, asker: Asker) -> Exhibit:
        """Return what is seen at it."""
        exhibit: Exhibit = getattr(asker, self.method)(*self.words, **self.asked)
        return exhibit


def _with_windows(*window: str) -> Iterator[Door]:
    """Yield the doors that take a window."""
    for name, finders, method, words in (
        ("page", "page", "text", ("T",)),
        ("page --json", "page as JSON", "json", ("T",)),
        ("page --markdown", "page with tables", "text", ("T", "--markdown")),
        ("page .html", "page with tables", "html", ("", "T")),
        *(
            way
            for noun, table in NOUNS.items()
            for way in (
                (f"show {noun}", noun, "text", ("show", noun, "T", *EVERY_ROW)),
                (f"show {noun} --json", f"{noun} as JSON", "json", ("show", noun, "T")),
                (f"show {noun} --csv", f"{noun} as CSV", "csv", (table, "show", noun, "T")),
            )
        ),
        ("findings", "findings", "text", ("findings", "T", *EVERY_ROW)),
        ("findings --json", "findings as JSON", "json", ("findings", "T")),
        ("findings --csv", "findings as CSV", "csv", ("findings.findings", "findings", "T")),
        *((f"show {' '.join(one)}", "table", "text", ("show", *one, "T")) for one in TABLES),
        *(
            (f"show {' '.join(one)} --json", "table as JSON", "json", ("show", *one, "T"))
            for one in TABLES
        ),
    ):
        typed = " ".join((name, *window))
        yield Door(typed, finders, method, (*words, *window), is_steady=bool(window))
    for name, finders, method, words in (
        ("run.figures()", "figures", "figures", ()),
        ("run.page()", "page", "page", ()),
        ("run.breakdown().to_frame()", "breakdown table", "frame", ("breakdown.devices",)),
        ("run.steps().to_frame()", "steps as CSV", "frame", ("steps.steps",)),
        ("run.steps().sentences", "steps", "sentences", ("steps",)),
    ):
        typed = " ".join((name, *window))
        yield Door(typed, finders, method, (*words, *window[-1:]), is_steady=bool(window))


SECTIONS: Final = ("verdict", "findings", "breakdown", "steps", "idle", "ideal", "ranks", "mfu")
IDEAL: Final = ("explain", "T", "--ideal")
SAME: Final = ("compare", "T", "T")

DOORS: Final[tuple[Door, ...]] = (
    *_with_windows(),
    Door("explain T", "explain the slowest", "slowest"),
    Door("explain T step:N", "explain", "explained"),
    Door("explain T step:N --json", "explain as JSON", "explained", ("--json",)),
    Door("show steps: step N", "that step", "that_step"),
    Door("explain T --ideal", "ideal", "text", IDEAL),
    Door("explain T --ideal --json", "ideal as JSON", "json", IDEAL),
    Door("compare T T", "compare", "text", SAME),
    Door("compare T T --json", "compare as JSON", "json", SAME),
    *(Door(f"report: {one}", f"report: {one}", "html", (one, "report", "T")) for one in SECTIONS),
    Door("report: chart of steps", "report: chart of steps", "chart_of_steps"),
    Door("timeline", "timeline", "steps_drawn"),
    Door("show steps -w all", "all steps", "json", ("show", "steps", "T", "-w", "all")),
    Door("mcp: page", "page", "assistant", ("page",), {"trace": "T"}),
    Door("mcp: findings", "findings", "assistant", ("findings",), {"trace": "T"}),
    *(
        Door(
            f"mcp: tables {noun}",
            {"steps": "steps, some rows"}.get(noun, noun),
            "assistant",
            ("tables",),
            {"trace": "T", "noun": noun, "rows": 200},
        )
        for noun in NOUNS
    ),
    Door("mcp: compare", "compare", "assistant", ("compare",), {"base": "T", "new": "T"}),
    Door("runs add: database", "kept", "kept"),
    Door("scaling T", "scaling", "text", ("scaling", "T")),
    Door("runs list", "kept runs listed", "kept_list"),
    *_with_windows(*STEADY),
)
"""All doors; the first that shows a figure is the one that the others have to agree with."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one door shows of one figure; ``expected`` is what the first door shows of it."""

    figure: str
    door: str
    readings: Sequence[Reading]
    expected: str = ""
    agrees: bool = True

    @property
    def texts(self) -> str:
        """What the door shows, each text once."""
        texts = (" or ".join(dict.fromkeys(one.text for one in own)) for own in self.readings)
        return " | ".join(dict.fromkeys(texts)) or "nothing"


def answers_of(asker: Asker) -> list[Answer]:
    """Return what every door shows of every figure, door by door."""
    is_steady = asker.window.startswith("steady")
    seen: Shown = {}
    for door in DOORS:
        if door.is_steady and not is_steady:
            continue
        for figure, readings in figures_in(
            door.shown(asker), FINDERS[door.finders], kind_of
        ).items():
            seen.setdefault(named(figure), {}).setdefault(door.name, []).extend(readings)
    found = [answer for figure, doors in seen.items() for answer in _judged(figure, doors, seen)]
    return [*found, *(_missing(seen) if is_steady else ())]


Shown: TypeAlias = dict[str, dict[str, list[Reading]]]
"""What is shown of each figure at each door."""
_TYPED: Final = " ".join(("", *STEADY))


def _missing(seen: Shown) -> Iterator[Answer]:
    """Yield the doors that show a figure with `-w steady` typed or without it, but not both."""
    typed = {door.name for door in DOORS if door.is_steady}
    for figure, doors in seen.items():
        for name in sorted(typed):
            default = name.removesuffix(_TYPED)
            if default in doors and name not in doors:
                yield Answer(figure, name, (), "something", agrees=False)
            elif name in doors and default not in doors:
                yield Answer(figure, default, (), f"what {_TYPED.strip()} shows", agrees=False)


def _judged(figure: str, doors: Mapping[str, list[Reading]], seen: Shown) -> Iterator[Answer]:
    first = next(iter(doors.values()))[0]
    finest = _finest(doors) if len(first) == 1 else first
    ends = [_first(seen.get(end)) for end in WITHIN.get(figure, ())]
    for door, readings in doors.items():
        if ends and all(ends):
            low, high = (end[0] for end in ends if end)
            expected = f"{low.text} to {high.text}"
            bounds = (low.value - low.digit, high.value + high.digit)
            agrees = all(bounds[0] <= one.value <= bounds[1] for own in readings for one in own)
        else:
            expected = " or ".join(one.text for one in first)
            agrees = all(_agree(one, own) for one in (first, finest) for own in readings)
        yield Answer(figure, door, readings, expected, agrees)


def _finest(doors: Mapping[str, list[Reading]]) -> Reading:
    """Return what is shown with the most digits: the first door may be a sentence, with three."""
    every = [own for readings in doors.values() for own in readings if len(own) == 1]
    return min(every, key=lambda own: (own[0].text.startswith("≈"), own[0].digit))


def _first(doors: Mapping[str, list[Reading]] | None) -> Reading | None:
    return next(iter(doors.values()))[0] if doors else None


def _agree(first: Reading, other: Reading) -> bool:
    return any(one.agrees(two) for one in first for two in other)


def disagreements(asker: Asker) -> list[str]:
    """Return a line for each figure that a door shows otherwise than the first door."""
    return [
        f"{answer.figure}: {answer.expected} expected, {answer.texts} at {answer.door}"
        for answer in answers_of(asker)
        if not answer.agrees
    ]


def traces() -> dict[str, Path]:
    """Return all traces, by the names that tests have for them."""
    shared = {name: TRACES / name for name in (*ALL, *H100, *_OTHERS) if "zero-kernels" not in name}
    own = ROOT / "fixtures" / "traces"
    fixtures = [*sorted(own.glob("*.sqlite.gz")), own / "h100-ddp"]
    return {**{f"fixtures/{path.name}": path for path in fixtures}, **shared}


_OTHERS: Final = (
    *("elastic-launcher-without-rank", "h100/jax-0.11-mlp.trace.json.gz"),
    "h100/jax-0.11-mlp.xplane.pb",
)
_WIDTH: Final = 44


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _say_matrix(answers: Sequence[Answer], *, is_brief: bool) -> None:
    figures: dict[str, list[Answer]] = {}
    for answer in answers:
        figures.setdefault(answer.figure, []).append(answer)
    for figure, own in figures.items():
        wrong = [answer for answer in own if not answer.agrees]
        _say(f"{'≠' if wrong else '='} {figure}: {own[0].expected} ({len(own)} doors)")
        for answer in wrong if is_brief else own:
            _say(f"    {' ' if answer.agrees else '≠'} {answer.door:{_WIDTH}} {answer.texts[:160]}")


def main() -> None:
    """Print what all doors say of the traces that are named, or of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("traces", nargs="*", metavar="TRACE")
    parser.add_argument("--fresh", action="store_true", help="open the trace anew at each door")
    parser.add_argument("--brief", action="store_true", help="only where doors disagree")
    chosen = parser.parse_args()
    known = traces()
    paths = {name: known.get(name, Path(name)) for name in chosen.traces} or known
    n_wrong = 0
    for name, path in paths.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            asker = Asker(path.absolute(), Path(folder), chosen.fresh)
            with asking(asker):
                answers = answers_of(asker)
                broken = [
                    f"{key}: {text}" for key, own in INVARIANTS.items() for text in own(asker)
                ]
        wrong = [answer for answer in answers if not answer.agrees]
        n_wrong += len(wrong) + len(broken)
        _say(f"\n=== {name}: window {asker.window or '–'}, step {asker.chosen_step}")
        _say_matrix(answers, is_brief=chosen.brief)
        for text in broken:
            _say(f"! {text}")
        took = time.monotonic() - began
        _say(f"--- {len(wrong)} of {len(answers)} answers, {len(broken)} invariants, {took:.1f} s")
    _say(f"\n{len(paths)} traces: {n_wrong} disagreements and broken invariants")


if __name__ == "__main__":
    main()
