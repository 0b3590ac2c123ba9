"""Every command of README and docs, run through the command line, prints what the page shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.examples import PAGES, examples, furnish, run

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


def test_the_pages_of_a_newcomer_show_what_commands_print() -> None:
    """README, the tutorial and the answers to questions: hardly a command without its output."""
    for name, least in (("README.md", 1), ("tutorial.md", 6), ("howto.md", 6)):
        (page,) = (one for one in PAGES if one.name == name)
        assert sum(bool(one.printed) for one in examples(page)) >= least, name
