"""The site of docs/ is built strict: no page without its place, no link that leads nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.site_pages import with_links
from tests.requirements import ROOT, require


def test_links_lead_to_pages_of_the_site() -> None:
    told = with_links(
        "[a](docs/x.md#y) ![b](docs/p.png) [c](ARCHITECTURE.md) [d](scripts/x)", "", ""
    )
    assert told == "[a](x.md#y) ![b](p.png) [c](architecture.md) d"
    told = with_links(
        "[a](../README.md) [b](y.md) [c](#z) [d](../scripts/x)", "docs", "https://h/r"
    )
    assert told == "[a](index.md) [b](y.md) [c](#z) [d](https://h/r/blob/main/scripts/x)"


def test_it_builds(tmp_path: Path) -> None:
    require("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "Where does the step time of a training run go" in page
    assert 'href="https://fonts.' not in page
    assert (tmp_path / "tutorial.html").is_file()
