"""The shape of the house: layers, extension points, documents that must stay true."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import traceprof
import traceprof as tp
import traceprof.formats
from scripts import reference, reference_pages
from tests.builders import TraceBuilder
from tests.requirements import ROOT
from traceprof import errors, findings, formats, measures
from traceprof.cli import app, commands
from traceprof.errors import UsageError
from traceprof.export import EXPORTERS
from traceprof.findings import Finding, Rule
from traceprof.findings.claims import Kind
from traceprof.findings.context import Context
from traceprof.findings.rules import WORK
from traceprof.formats import FORMATS, TraceFormat, open_trace
from traceprof.formats.contract import Candidate, ReadOptions
from traceprof.formats.nsys.writer import write_nsys
from traceprof.hardware.catalogue import parse_hardware
from traceprof.logs.sources import SOURCES
from traceprof.model import tables
from traceprof.model.results import Note, ResultSpec
from traceprof.model.trace import Trace
from traceprof.recording.recorders import RECORDERS
from traceprof.registries import Registry
from traceprof.render import registry
from traceprof.render.registry import Renderer
from traceprof.session.answer import answer
from traceprof.session.run import open_run
from traceprof.trying.changes import CHANGES

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
FAKE_ANALYSIS = """
from traceprof.measures.analyses import Analysis
from traceprof.model.grouping import groups_of
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table

SPEC = ResultSpec.of('''
    table streams: one row per stream
    key stream: the stream
    total kernel_count: how many
    ''')


def measure(trace):
    streams = groups_of(trace.kernels["stream"])
    counts = {"stream": streams.values[0], "kernel_count": streams.counts}
    return Result("fake", SPEC, {"streams": Table(counts)}, notes=(Note("counted"),))


ANALYSIS = Analysis("fake", SPEC, needs=("kernels",), of_rank=measure)
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

    def recognizes(candidate: Candidate) -> bool:
        return candidate.head.startswith(b"FAKE ")

    fake = TraceFormat("fake", "for this test", recognizes, read)
    monkeypatch.setattr(formats, "FORMATS", FORMATS.with_more(fake))
    path = tmp_path / "trace.anything"
    path.write_text("FAKE gemm")
    assert open_trace(path).kernels.to_frame()["name"].tolist() == ["gemm"]
    printed = CliRunner().invoke(app, ["kernels", str(path), "--csv"])
    assert printed.stdout.splitlines()[1].startswith("gemm,gemm,1,10")


@pytest.fixture
def fake_analysis(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register an analysis of one module and one line, and return its name."""
    module = ModuleType("fake_analysis")
    monkeypatch.setitem(sys.modules, "fake_analysis", module)
    exec(FAKE_ANALYSIS, module.__dict__)
    entry = measures.Entry("fake", "counts kernels", "fake_analysis")
    monkeypatch.setattr(measures, "ANALYSES", measures.ANALYSES.with_more(entry))
    return entry.name


def small_trace(folder: Path) -> Path:
    path = folder / "trace.sqlite"
    write_nsys(TraceBuilder().kernel("a", 0, 1).kernel("b", 1, 2).build(), path)
    return path


def test_an_analysis_is_one_module(fake_analysis: str, tmp_path: Path) -> None:
    path = str(small_trace(tmp_path))
    printed = CliRunner().invoke(app, ["show", fake_analysis, path, "--json"])
    answer = json.loads(printed.stdout)["results"]["fake"]
    (row,) = answer["tables"]["streams"]["rows"]
    assert row == {"key": "stream=7", "stream": 7, "kernel_count": 2}
    assert [note["text"] for note in answer["notes"]] == ["counted"]
    assert "kernel" in CliRunner().invoke(app, ["show", fake_analysis, path]).stdout
    assert "fake" in CliRunner().invoke(app, ["show"]).stdout
    assert tp.open(path).fake().table.to_frame()["kernel_count"].tolist() == [2]


def test_a_finding_is_one_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def check(context: Context) -> Iterator[Finding]:
        claim = context.kernel_claim(context.kernels.by_name)
        title = Note.of("fake: {share:ratio} of the time", share=context.share(claim))
        yield Finding(title, (claim,), Kind.MEASURED, (), "do it", "it is fake")

    fake = Rule("fake", "fakes", "for this test", ("kernels",), WORK, "kernels", check)
    monkeypatch.setattr(findings, "RULES", Registry("rule", (fake,)))
    path = str(small_trace(tmp_path))
    shown = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["findings", path]).stdout
    assert (
        "1. fake: 100.0% of the time\n   Saves       2 ns of 2 ns in the window (100.0%, measured)"
        in shown
    )
    assert "Next        traceprof show kernels" in CliRunner().invoke(app, [path]).stdout


def test_a_renderer_is_one_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("fake_renderer")
    module.render_fake = lambda document, _: " ".join(document.results)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_renderer", module)
    fake = Renderer("fake", "for this test", "fake_renderer:render_fake")
    monkeypatch.setattr(registry, "RENDERERS", registry.RENDERERS.with_more(fake))
    document = answer(open_run([small_trace(tmp_path)]), ["kernels"])
    assert registry.render("fake", document) == "kernels"


def test_a_command_is_one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(count: int = 1) -> None:
        """For this test."""
        typer.echo("fake " * count)

    module = ModuleType("traceprof.cli.fake")
    module.fake = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "traceprof.cli.fake", module)
    known = commands.COMMANDS
    both = known.with_more(commands.Command("fake", "for this test"))
    monkeypatch.setattr(commands.LazyGroup, "known", both)
    assert CliRunner().invoke(app, ["fake", "--count", "2"]).stdout == "fake fake \n"
    assert "for this test" in CliRunner().invoke(app, ["--help"]).stdout


REGISTRIES: dict[str, Registry[Any]] = {
    "an analysis": measures.ANALYSES,
    "a finding": findings.RULES,
    "a format": FORMATS,
    "a renderer": registry.RENDERERS,
    "an export": EXPORTERS,
    "a command": commands.COMMANDS,
    "a command of runs": next(c.commands for c in commands.COMMANDS if c.name == "runs"),
    "a source of logs": SOURCES,
    "a change of `try`": CHANGES,
    "a recorder": RECORDERS,
}


@pytest.mark.parametrize("what", REGISTRIES)
def test_a_registry_refuses_a_name_that_is_taken(what: str) -> None:
    """Else one would replace the documented other, and nobody would see it."""
    known = REGISTRIES[what]
    for entry in (known[0], known[-1]):
        taken = re.escape(f"the {known.kind} {entry.name!r} is declared twice")
        with pytest.raises(ValueError, match=f"{taken}: give one of them another name"):
            known.with_more(entry)
    assert len({entry.name for entry in known}) == len(known) > 3


def test_every_registry_that_is_added_to_is_one_that_refuses() -> None:
    rows = re.findall(r"^\| (an? .+?) \| .*? \| (?:`([A-Z]+)`|there)", ARCHITECTURE, re.MULTILINE)
    assert {what for what, _ in rows} - {"a change of what is kept"} <= set(REGISTRIES)
    assert {name for _, name in rows} > {"FORMATS", "ANALYSES", "RULES", "RECORDERS"}


@pytest.mark.parametrize(
    ("name", "noun", "way", "taken"),
    [
        ("step_phases", "", "", "step_phases"),  # as Python calls step-phases
        ("ops", "", "", "ops"),  # what operators were called
        ("new", "collectives", "caller", "collectives --by caller"),
        ("kernels", "new", "name", "kernels"),
    ],
)
def test_an_analysis_is_found_by_itself_alone(name: str, noun: str, way: str, taken: str) -> None:
    entry = measures.Entry(name, "does what another does", "elsewhere", noun, way)
    with pytest.raises(ValueError, match=f"the analysis '{taken}' is declared twice"):
        measures.ANALYSES.with_more(entry)


@pytest.mark.parametrize(
    ("declared", "taken"),
    [
        ("table a: one\nkey x: x\ntable a: two\nkey y: y", "table 'a'"),
        ("table a: one\nkey x: x\nsame x: again", "column of a 'x'"),
        ("table a: one\nkey x: x\nscalars:\nsame s: s\nsame s: s", "scalar 's'"),
    ],
)
def test_tables_columns_and_scalars_are_declared_once(declared: str, taken: str) -> None:
    with pytest.raises(ValueError, match=f"the {taken} is declared twice"):
        ResultSpec.of(declared)


def test_tables_of_a_trace_are_declared_once() -> None:
    declared = "a: one | start_ns x\n\n"
    for text, taken in ((declared * 2, "table 'a'"), ("a: one | x~ x", "column of a 'x'")):
        with pytest.raises(ValueError, match=f"the {taken} is declared twice"):
            tables._tables(text)


def test_a_result_that_is_documented_keeps_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = measures.Entry("explain", "what `explain` says", "fake_analysis")
    monkeypatch.setattr(reference, "ANALYSES", measures.ANALYSES.with_more(entry))
    with pytest.raises(ValueError, match="the documented result 'explain' is declared twice"):
        reference.declared_specs()


def test_gpus_of_a_file_have_keys_of_their_own() -> None:
    gpu = '[[gpu]]\nkey = "mine"\nnames = ["B200"]\nsource = "us"\n'
    with pytest.raises(UsageError, match="the GPU 'mine' is declared twice"):
        parse_hardware(gpu * 2)


def test_measures_and_findings_do_not_word_numbers() -> None:
    """Sentences are templates: the import contract forbids formats, this test f-strings of them."""
    for room in ("measures", "findings", "names", "model"):
        paths = list((ROOT / "traceprof" / room).rglob("*.py"))
        assert paths
        for path in paths:
            assert not re.search(r"\bformat_(duration|bytes|rate|ratio|count)\b", path.read_text())


def test_every_format_module_is_registered() -> None:
    modules = pkgutil.walk_packages(formats.__path__, "traceprof.formats.")
    named = (vars(import_module(module.name)).values() for module in modules)
    found = {id(one) for values in named for one in values if isinstance(one, TraceFormat)}
    assert found == set(map(id, FORMATS))


def test_every_error_has_its_documented_exit_code() -> None:
    tree = errors.__doc__ or ""
    told = (ROOT / "docs" / "commands.md").read_text("utf-8")
    for name in errors.__all__:
        code = getattr(errors, name).exit_code
        assert re.search(rf"{name}\s+{code}\b", tree)
        assert re.search(rf"\|\s*{code}\s*\|", told)


def test_every_page_that_is_written_from_the_code_is_fresh() -> None:
    """A new command, finding or way to show a table is there once `scripts/schema` has run."""
    docs = {path.name: path.read_text("utf-8") for path in (ROOT / "docs").glob("*.[m1]*")}
    schema = json.loads((ROOT / "docs" / "schema" / "analysis-2.json").read_text("utf-8"))
    for name, text in reference_pages.pages(docs, schema).items():
        assert docs[name] == text, f"docs/{name}: run scripts/schema"
    assert not [
        c.name for c in commands.COMMANDS if f"traceprof {c.name}" not in docs["commands.md"]
    ]
    for entry in measures.ANALYSES:
        assert entry.words in docs["commands.md"]


def test_the_readme_is_a_door() -> None:
    """Of two screens, about: what moves into docs stays there."""
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 130


def test_the_changelog_knows_this_version() -> None:
    assert f"## {traceprof.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.parametrize(("name", "most"), [("ARCHITECTURE.md", 1700), ("CONTRIBUTING.md", 650)])
def test_documents_stay_short(name: str, most: int) -> None:
    words = (ROOT / name).read_text("utf-8").split()
    assert len(words) <= most
