"""The shape of the house: layers, extension points, documents that must stay true."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import traceprof
import traceprof.formats
from tests.builders import TraceBuilder
from tests.requirements import ROOT
from traceprof import analysis, errors, formats
from traceprof.cli import app
from traceprof.formats import FORMATS, TraceFormat, open_trace
from traceprof.formats.base import Candidate, ReadOptions
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.trace import Trace

FAKE_ANALYSIS = """
from dataclasses import dataclass

import pandas as pd

from traceprof.analysis.base import Analysis


@dataclass(frozen=True)
class Answer:
    n_kernels: int
    notes: tuple[str, ...] = ("counted",)

    def to_frame(self) -> pd.DataFrame:
        return pd.DataFrame({"kernel_count": [self.n_kernels]})


ANALYSIS = Analysis("fake", ("kernels",), lambda t: Answer(len(t.kernels)))
"""


def test_layers_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_format_is_one_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def read(path: Path, options: ReadOptions) -> Trace:
        return TraceBuilder().kernel(path.read_text().split()[1], 0, 10).build()

    def recognises(candidate: Candidate) -> bool:
        return candidate.head.startswith(b"FAKE ")

    fake = TraceFormat("fake", "for this test", recognises, read)
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, fake))
    path = tmp_path / "trace.anything"
    path.write_text("FAKE gemm")
    assert open_trace(path).kernels["name"].tolist() == ["gemm"]
    printed = CliRunner().invoke(app, ["kernels", str(path), "--csv"])
    assert printed.stdout.splitlines()[1].startswith("gemm,gemm,1,10")


def test_an_analysis_is_one_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    write_nsys(TraceBuilder().kernel("a", 0, 1).kernel("b", 1, 2).build(), path)
    module = ModuleType("fake_analysis")
    monkeypatch.setitem(sys.modules, "fake_analysis", module)
    exec(FAKE_ANALYSIS, module.__dict__)
    entry = analysis.Entry("fake", "counts kernels", "fake_analysis")
    monkeypatch.setattr(analysis, "ANALYSES", (*analysis.ANALYSES, entry))
    printed = CliRunner().invoke(app, ["analyze", "fake", str(path), "--json"])
    answer = json.loads(printed.stdout)["results"]["fake"]
    assert answer == {"notes": ["counted"], "rows": [{"kernel_count": 2}]}
    assert "kernel" in CliRunner().invoke(app, ["analyze", "fake", str(path)]).stdout


def test_every_format_module_is_registered() -> None:
    found = {
        module.name
        for module in pkgutil.walk_packages(formats.__path__, "traceprof.formats.")
        if (known := getattr(import_module(module.name), "FORMAT", None))
        if known.read.__module__ == module.name
    }
    assert found == {known.read.__module__ for known in FORMATS}


def test_every_error_has_its_documented_exit_code() -> None:
    tree = errors.__doc__ or ""
    readme = (ROOT / "README.md").read_text("utf-8")
    for name in errors.__all__:
        code = getattr(errors, name).exit_code
        assert re.search(rf"{name}\s+{code}\b", tree)
        assert re.search(rf"\|\s*{code}\s*\|", readme)


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    missing = [name for name in commands if f"traceprof {name}" not in readme]
    assert not missing


def test_the_changelog_knows_this_version() -> None:
    assert f"## {traceprof.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.parametrize(("name", "most"), [("ARCHITECTURE.md", 1100), ("CONTRIBUTING.md", 550)])
def test_documents_stay_short(name: str, most: int) -> None:
    words = (ROOT / name).read_text("utf-8").split()
    assert len(words) <= most
