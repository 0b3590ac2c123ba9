"""Of every recording that is labelled: what must be said, and what must not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import require
from tests.truth.judged import document_of, result
from tests.truth.labels import PLANTED, SHARED, WILD, Label
from tests.truth.scenarios import SCENARIOS, Scenario
from traceprof.errors import TraceprofError
from traceprof.findings import RULES
from traceprof.render.formatting import note_text
from traceprof.render.registry import Options, render

WIDE = 4_000
"""Nothing is cut."""


def sentences_of(name: str) -> Iterator[str]:
    """Yield the page of a run, its findings with evidence and advice, and the notes of tables."""
    yield render("text", document_of(name), Options(width=WIDE))
    findings = result(name, "findings")
    assert findings
    for row in findings.table.rows():
        yield from map(note_text, (row["title"], *row["evidence"]))
        yield row["action"]
    for table in ("steps", "stragglers"):
        if told := result(name, table):
            yield from map(note_text, told.notes)


def said_of(name: str) -> str:
    try:
        return "\n".join(sentences_of(name))
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
    check(WILD[name], said_of(f"../wild/{name}"))


@pytest.mark.traces
def test_every_situation_that_people_reported_has_a_label() -> None:
    folder = Path(require("traces")).parent / "wild"
    # Folders that are named by a day hold situations with the right answer, not pages to read.
    named = {path.name for path in folder.iterdir() if not path.name.startswith("2026-")}
    assert named - {"README.md"} == set(WILD)


@pytest.mark.traces
@pytest.mark.parametrize("name", SHARED)
def test_of_a_shared_trace(name: str) -> None:
    check(SHARED[name], said_of(name))


@pytest.mark.parametrize("name", PLANTED)
def test_of_what_was_planted(name: str) -> None:
    check(PLANTED[name], "\n".join(sentences_of(name)))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_what_is_found_first_is_not_fine(scenario: Scenario) -> None:
    verdict, findings = document_of(scenario.name).verdict, result(scenario.name, "findings")
    assert verdict is not None
    assert findings
    found = [row for row in findings.table.rows() if not row["is_minor"]]
    if not scenario.rules:
        assert not {row["rule"] for row in found} - set(scenario.also)
        return
    checked = findings.tables["checked"]
    fine = {row["subject"] for row in checked.rows() if row["is_fine"]}
    subjects = {rule.name: rule.subject for rule in RULES}
    assert subjects[found[0]["rule"]] not in {*fine, *verdict.fine}
