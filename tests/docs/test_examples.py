"""Every command of README and docs, run through the command line, prints what the page shows."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.docs.examples import ELSEWHERE, PAGES, examples, furnish, inline_examples, run
from traceprof.cli import app

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands are those of bash")

_SIZE = re.compile(r"[\d.]+ [kM]?B\)")
"""Of a file that holds plotly, or is compressed: another version, another size."""


def _differ(shown: str, printed: str) -> bool:
    return _SIZE.sub("", shown) != _SIZE.sub("", printed)


WITH = [page for page in PAGES if any(not one.elsewhere for one in examples(page))]


@pytest.mark.parametrize("page", WITH, ids=lambda page: page.name)
def test_the_commands_of_a_page(page: Path, tmp_path: Path) -> None:
    furnish(tmp_path, page.read_text("utf-8"))
    wrong = []
    for one in examples(page):
        if one.elsewhere:
            continue
        done = run(one.command, tmp_path)
        shown = done.stdout.strip("\n")
        if done.returncode or (one.printed and _differ(shown, one.printed)):
            wrong.append(f"{one.page}:{one.line}: {one.command}: exit {done.returncode}\n{shown}")
    assert not wrong, "\n".join([*wrong, "python -m tests.docs.examples writes pages anew"])


GENERATED = ("tables.md", "commands.md", "findings.md", "json.md", "reliability.md")
"""Their commands are those of the registries."""
INLINE = {
    one.command: one
    for page in PAGES
    if page.name not in GENERATED
    for one in inline_examples(page)
}


@pytest.mark.slow
def test_the_whole_commands_in_sentences_are_run(tmp_path: Path) -> None:
    """A command that names a file of `furnish` is whole; its data may not be recorded (4)."""
    furnish(tmp_path)
    wrong, n_run = [], 0
    for command, one in INLINE.items():
        words = shlex.split(command)[1:]
        folders = (tmp_path, tmp_path / "recorded")
        if one.elsewhere or not any((where / word).exists() for word in words for where in folders):
            continue
        is_report = words[0] == "report"  # a report has a name by default, which is taken
        done = run(f"{command} -o r{n_run}.html" if is_report else command, tmp_path)
        n_run += 1
        if done.returncode not in (0, 4):
            wrong.append(f"{one.page}:{one.line}: {command}: exit {done.returncode}\n{done.stdout}")
    assert not wrong, "\n".join(wrong)
    assert n_run > 40


def test_the_commands_and_options_in_sentences_are_there() -> None:
    group: Any = typer.main.get_command(app)
    context = group.make_context("traceprof", ["--help"], resilient_parsing=True)
    wrong = []
    for command, one in INLINE.items():
        words = command.partition(" -- ")[0].split()[1:]
        entry = group.get_command(context, words[0])
        below = getattr(entry, "commands", {})
        entry = below.get(words[1], entry) if len(words) > 1 else entry
        entry = entry or group.get_command(context, "analyze")
        known = {name for each in (*entry.params, *group.params) for name in each.opts}
        known |= {"--install-completion", "--help"}
        if bad := [word for word in words if word.startswith("--") and word not in known]:
            wrong.append(f"{one.page}:{one.line}: {command}: {bad}")
        is_name = words[0].isidentifier() and words[0].islower()
        if is_name and group.get_command(context, words[0]) is None:
            wrong.append(f"{one.page}:{one.line}: {command}: no command {words[0]}")
    assert not wrong, "\n".join(wrong)


def test_few_commands_are_tried_elsewhere() -> None:
    assert len(ELSEWHERE) <= 15


def test_the_pages_of_a_newcomer_show_what_commands_print() -> None:
    """README, the tutorial and the answers to questions: hardly a command without its output."""
    for name, least in (("README.md", 1), ("tutorial.md", 6), ("howto.md", 6)):
        (page,) = (one for one in PAGES if one.name == name)
        assert sum(bool(one.printed) for one in examples(page)) >= least, name
