"""Of every recording that is labelled: what must be said, and what must not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import require
from tests.truth.labels import PLANTED, SHARED, WILD, Label
from tests.truth.scenarios import SCENARIOS, Scenario
from traceprof.errors import TraceprofError
from traceprof.findings import RULES
from traceprof.measures.steps.find import decide_steps
from traceprof.render.formatting import note_text
from traceprof.render.registry import Options, render
from traceprof.session.answer import page
from traceprof.session.run import Run, open_run, run_of

WIDE = 4_000
"""Nothing is cut."""
TOLD_BY_TABLES = ("steps", "stragglers", "findings")


def sentences_of(run: Run) -> Iterator[str]:
    """Yield the page of a run, its findings with evidence and advice, and the notes of tables."""
    yield render("text", page(run), Options(width=WIDE))
    answers = run.answers(list(TOLD_BY_TABLES))
    for row in answers.results["findings"].table.rows():
        yield from map(note_text, (row["title"], *row["evidence"]))
        yield row["action"]
    for name in ("steps", "stragglers"):
        if name in answers.results:
            yield from map(note_text, answers.results[name].notes)


def said_of(path: Path) -> str:
    try:
        return "\n".join(sentences_of(open_run([path])))
    except TraceprofError as error:
        return str(error)


def check(label: Label, said: str) -> None:
    missing = [pattern for pattern in label.says if not re.search(pattern, said)]
    assert not missing, said
    wrong = [pattern for pattern in label.never if re.search(pattern, said)]
    assert not wrong, said


@pytest.mark.traces
@pytest.mark.parametrize("name", WILD)
def test_of_what_people_reported(name: str) -> None:
    check(WILD[name], said_of(Path(require("traces")).parent / "wild" / name))


@pytest.mark.traces
def test_every_situation_that_people_reported_has_a_label() -> None:
    folder = Path(require("traces")).parent / "wild"
    assert {path.name for path in folder.iterdir()} - {"README.md"} == set(WILD)


@pytest.mark.traces
@pytest.mark.parametrize("name", SHARED)
def test_of_a_shared_trace(name: str) -> None:
    check(SHARED[name], said_of(Path(require("traces")) / name))


@pytest.mark.parametrize("name", PLANTED)
def test_of_what_was_planted(name: str) -> None:
    (scenario,) = [one for one in SCENARIOS if one.name == name]
    check(PLANTED[name], "\n".join(sentences_of(run_of(decide_steps(scenario.make())))))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_what_is_found_first_is_not_fine(scenario: Scenario) -> None:
    run = run_of(decide_steps(scenario.make()))
    verdict = page(run).verdict
    assert verdict is not None
    found = [row for row in run.result("findings").table.rows() if not row["is_minor"]]
    if not scenario.rules:
        assert not {row["rule"] for row in found} - set(scenario.also)
        return
    checked = run.result("findings").tables["checked"]
    fine = {row["subject"] for row in checked.rows() if row["is_fine"]}
    subjects = {rule.name: rule.subject for rule in RULES}
    assert subjects[found[0]["rule"]] not in {*fine, *verdict.fine}
