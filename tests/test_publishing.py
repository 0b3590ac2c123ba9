"""What only runs elsewhere is what its readers expect; a wheel of this machine is one of many."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.requirements import require
from traceprof.version import __version__

ROOT = Path(__file__).resolve().parent.parent
GITHUB = ROOT / ".github"
CHECKED = [
    *((path, "github-workflows") for path in sorted(GITHUB.glob("workflows/*.yml"))),
    *((path, "github-actions") for path in sorted(GITHUB.glob("actions/*/action.yml"))),
    *((path, "github-issue-forms") for path in sorted(GITHUB.glob("ISSUE_TEMPLATE/w*.yml"))),
    (GITHUB / "ISSUE_TEMPLATE" / "config.yml", "github-issue-config"),
    (ROOT / "CITATION.cff", "citation-file-format"),
]


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("path", "schema"), CHECKED, ids=[path.relative_to(ROOT).as_posix() for path, _ in CHECKED]
)
def test_files_for_other_machines_are_as_published(path: Path, schema: str) -> None:
    pytest.importorskip("check_jsonschema")
    run("check_jsonschema", "--builtin-schema", f"vendor.{schema}", path)


def test_workflows_call_what_there_is() -> None:
    texts = [path.read_text() for path in sorted(GITHUB.rglob("*.yml"))]
    for script in ("scripts/test", "scripts/site", ".ci/run"):
        assert any(script in text for text in texts)
        assert (ROOT / script).is_file()
    assert "secrets." not in "".join(texts)  # trusted publishing: no token is kept anywhere


def test_the_action_takes_the_exit_code_of_a_regression() -> None:
    from traceprof.errors import RegressionError  # noqa: PLC0415

    action = (GITHUB / "actions" / "gate" / "action.yml").read_text()
    assert f"{RegressionError.exit_code}) verdict=regression" in action


def test_the_package_says_where_it_is_from() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"Source", "Documentation", "Changes", "Issues"} <= project["urls"].keys()
    assert all(url.startswith("https://") for url in project["urls"].values())


def test_the_citation_and_the_man_page_have_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation
    assert re.search(r'\ndate-released: "20\d\d-\d\d-\d\d"\n', citation)
    assert f'"traceprof {__version__}"' in (ROOT / "docs" / "traceprof.1").read_text("utf-8")


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not on this machine")
def test_the_man_page_is_typeset_without_a_warning() -> None:
    page = ROOT / "docs" / "traceprof.1"
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", str(page)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "record" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel is of Linux")
def test_a_wheel_of_this_machine_fits_others(tmp_path: Path) -> None:
    require("cc")
    pytest.importorskip("auditwheel")
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".*", "tests", "demo", "site", "*.library", "fixtures"),
    )
    sample = Path("fixtures", "traces", "h100-cnn.sqlite.gz")  # `traceprof demo`
    (source / sample).parent.mkdir(parents=True)
    shutil.copy(ROOT / sample, source / sample)
    run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, source)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("traceprof-")
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        assert sum(name.endswith(".library") for name in files.namelist()) == 2
        assert not any(name.startswith(("tests", "scripts")) for name in files.namelist())
        assert any(name.endswith("share/man/man1/traceprof.1") for name in files.namelist())
        files.extractall(tmp_path / "in stalled")
    assert "manylinux" in run("auditwheel", "show", wheel)
    done = subprocess.run(
        [sys.executable, "-m", "traceprof", "demo", "--no-browser"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "in stalled")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1. Layout conversions" in done.stdout
    assert (tmp_path / "traceprof-demo" / "report.html").is_file()
