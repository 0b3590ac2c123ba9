"""What ``import traceprof`` gives for reading traces."""

from __future__ import annotations

import inspect
import os
import pydoc
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest

import traceprof as tp
from scripts.python_tables import modules
from tests import typing_example
from tests.builders import TraceBuilder
from tests.measures.generated_run import MS, Plan, make_run
from tests.measures.test_completeness import launching
from tests.requirements import ROOT, require
from traceprof.api import tables
from traceprof.api.results import ShownRun
from traceprof.api.tables import Tables
from traceprof.errors import TraceError, UsageError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures import ANALYSES, nouns
from traceprof.model.trace import DEVICE_TABLES
from traceprof.render.formatting import note_text
from traceprof.session import run as session_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two ranks, of which the second takes longer."""
    for member in make_run(Plan(n_ranks=2, extra_ns={(1, "forward"): 10 * MS})):
        write_nsys(member.trace, tmp_path / f"rank{member.rank}.sqlite")
    return tmp_path


def test_every_table_is_a_method_and_nothing_else_bears_its_name(folder: Path) -> None:
    run = tp.open(folder)
    names = [entry.name.replace("-", "_") for entry in ANALYSES]
    of_tables = {name for kind in Tables.__mro__[1:-1] for name in vars(kind)}
    assert set(names) <= of_tables
    assert not set(names) & {*vars(tp.Run), *vars(ShownRun)}
    assert set(names) <= set(dir(run))
    assert run.step_phases().name == "step-phases"
    assert run.ranks().table.to_frame()["rank"].tolist() == [0, 1]
    with pytest.raises(AttributeError, match="has no attribute 'brekdown'; analyses: alignment, "):
        run.brekdown()  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_a_file_whose_name_is_no_unicode_text(folder: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(folder) + b"/a\xff.sqlite"))
    (folder / "rank0.sqlite").rename(path)
    run = tp.open(path)
    assert len(run.within("all").breakdown().table.to_frame()) == 1
    assert "kernels" in repr(run.kernels())
    assert tp.compare(path, path).to_frame() is not None


def test_a_step_is_explained(folder: Path) -> None:
    found = tp.open(folder).explain("step:5", against="step:4")
    assert (found.name, found.scalars["explained"], found.scalars["reference"]) == (
        "explain",
        "step 5",
        "step 4",
    )
    assert found.table.to_frame()["difference_ns"].sum() == found.scalars["difference_ns"]


def test_a_run_is_a_file_a_folder_or_files(folder: Path) -> None:
    files = sorted(folder.iterdir())
    for paths, n_devices in ((str(folder), 2), (folder, 2), (files, 2), (files[0], 1)):
        assert len(tp.open(paths).within("all").breakdown().table.to_frame()) == n_devices


def test_what_the_trace_cannot_know_is_a_keyword(folder: Path) -> None:
    rules = folder / "rules.toml"
    rules.write_text('[[rule]]\nactivity = "communication"\npattern = ".*"\n')
    run = tp.open(folder, rules=rules, warmup=3, gpu="h100-sxm", align="none")
    assert run.within("all").breakdown().table.to_frame()["compute_ns"].tolist() == [0, 0]
    assert run.steps().scalars["steady_count"] == 14
    with pytest.raises(UsageError, match="align 'sundial': expected one of auto, "):
        tp.open(folder, align="sundial")
    with pytest.raises(TraceError, match="No such file"):
        tp.open("nowhere.sqlite").breakdown()


def test_the_repr_is_short_and_reads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tp.open(folder).within("step:2..3")
    opened: list[Any] = []
    open_ranks = session_run.open_ranks
    monkeypatch.setattr(session_run, "open_ranks", lambda *a: opened.append(a) or open_ranks(*a))
    assert repr(run) == f"<traceprof run of {folder}, window step:2..3>"
    assert "step:2..3" in run._repr_html_()
    assert opened == []
    run.breakdown()
    assert len(opened) == 1
    known = f"<traceprof run of {folder}, files 2, devices 2, window step:2..3>"
    assert repr(run) == known
    assert "<td>2</td>" in run._repr_html_()
    assert len(opened) == 1


def test_results_show_themselves(folder: Path) -> None:
    result = tp.open(folder).within("all").steps()
    sizes = ", ".join(f"{name}: {len(frame)} rows" for name, frame in result.tables.items())
    assert repr(result) == f"<traceprof steps: {sizes}>"
    assert result.sentences == [note_text(note) for note in result.notes] != []
    html = result._repr_html_()
    assert html.startswith('<div class="traceprof"><style>')
    assert html.count("<table>") == html.count("</table>") >= 1
    assert ">rank</th>" in html
    assert "first 12 of 20 rows" in html


def test_names_in_a_notebook_are_text(tmp_path: Path) -> None:
    path = tmp_path / "<b>.sqlite"
    builder = TraceBuilder().kernel("<script>alert(1)</script>", 0, 10)
    write_nsys(builder.range("<script>alert(2)</script>", 0, 10).build(), path)
    run = tp.open(path)
    html = run.kernels()._repr_html_() + run.ranges()._repr_html_() + run._repr_html_()
    html = html.replace("<wbr>", "")  # where words may be parted
    assert "<script" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize("has_devices", [True, False])
def test_the_readme_runs_as_it_stands(
    has_devices: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also on what is recorded without a GPU, as the demo does on most machines."""
    (block,) = re.findall(
        r"```python\n(import traceprof as tp\n.*?)```",
        (ROOT / "README.md").read_text("utf-8"),
        re.S,
    )
    trace = make_run(Plan(n_ranks=1)).members[0].trace
    if not has_devices:
        names = {*DEVICE_TABLES, "api_calls"}
        trace = trace.with_tables({name: trace.table(name).head(0) for name in names})
        trace = replace(trace, recorded=trace.recorded - names)
    write_nsys(trace, tmp_path / "run.sqlite")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert ("no GPU recorded" in printed) is not has_devices
    assert "[9 rows x " in printed
    assert "9 usual steps: median " in printed


def test_a_program_that_uses_it_runs(folder: Path) -> None:
    assert 0 < typing_example.idle_share(folder, "steady") < 1
    assert typing_example.slow_steps(sorted(folder.iterdir())) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checker", "options"),
    [
        ("mypy", ("--strict", "-p", "tests.typing_example")),
        ("pyright", ("--pythonpath", sys.executable, "tests/typing_example.py")),
    ],
)
def test_it_has_the_types_that_both_checkers_find(checker: str, options: tuple[str, ...]) -> None:
    require(checker)
    done = subprocess.run(
        [sys.executable, "-m", checker, *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout


TYPOS = """
import traceprof as tp

run = tp.opn("run.sqlite")
run = tp.open("run.sqlite")
run.kernles()
run.kernels(by="clas")
run.kernels(by="class").to_frame("classes")
run.callers().sentences
tp.compare("a", "b").to_frame("judged")
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_find_names_that_are_none(checker: str, tmp_path: Path) -> None:
    require(checker)
    (tmp_path / "typos.py").write_text(TYPOS)
    command = [sys.executable, "-m", checker, *(["--strict"] if checker == "mypy" else [])]
    done = subprocess.run(
        [*command, str(tmp_path / "typos.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)},
        check=False,
    )
    found = sorted({int(line) for line in re.findall(r"typos\.py:(\d+).* error", done.stdout)})
    assert found == [4, 6, 7], done.stdout + done.stderr


def test_the_methods_of_tables_are_as_analyses_declare() -> None:
    folder = Path(tables.__file__).parent
    for name, text in modules().items():
        assert (folder / f"{name}.py").read_text("utf-8") == text, "scripts/schema writes it"
    help_of_kernels = pydoc.render_doc(tp.Run.kernels, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert "exposed" not in help_of_kernels
    assert "total_ns: total duration" in help_of_kernels
    assert 'by="class"' in pydoc.render_doc(tp.Run.classes, renderer=pydoc.plaintext)  # type: ignore[attr-defined]


def test_a_noun_by_a_way_is_the_table_that_had_a_name_of_its_own(folder: Path) -> None:
    run = tp.open(folder)
    for noun, entries in nouns().items():
        for entry in entries:
            method = getattr(tp.Run, noun.replace("-", "_"))
            own = inspect.signature(method).parameters
            assert ("by" in own) is (len(entries) > 1)
            assert entry.way in get_type_hints(method).get("by", Literal["", entry.way]).__args__
    assert run.kernels(by="class").table.to_frame().equals(run.classes().table.to_frame())
    assert run.collectives(by="caller").name == "callers"
    with pytest.raises(UsageError, match="kernels has no grouping 'clas'; did you mean 'class'"):
        run.kernels(by="clas")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown table 'clases'; use classes"):
        run.classes().to_frame("clases")


def test_operations_reports_and_exports_are_there(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    run = tp.open(folder).within("step:2..3")
    operations = run.ops(kind="kernel", rows=3, longest=True)
    assert operations["duration_ns"].is_monotonic_decreasing
    assert len(operations) == 3
    assert len(run.ops(name="no such kernel")) == 0
    assert "at_ns" in run.ops(name="no such kernel").columns
    written = run.export("perfetto", elsewhere / "trace.json")
    assert written.n_rows > 0
    assert written.n_bytes == (elsewhere / "trace.json").stat().st_size
    with pytest.raises(UsageError, match="--to pdf: choose one of perfetto"):
        run.export("pdf", elsewhere / "trace.pdf")
    assert run.report(elsewhere / "report.html").read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(UsageError, match="exists"):
        run.report(elsewhere / "report.html")


def test_a_page_is_what_the_command_prints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # workers of pytest-xdist have it
    page = tp.open(folder).page()
    done = subprocess.run(
        [sys.executable, "-m", "traceprof", str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRACEPROF_CACHE": "0"},
        check=True,
    )
    assert str(page) == done.stdout
    assert page.headline[1] in " ".join(done.stdout.split())
    assert page.headline[0] in repr(page)
    assert page._repr_html_().startswith('<div class="traceprof"')


def test_figures_are_what_is_kept_of_a_run(folder: Path) -> None:
    run = tp.open(folder)
    figures = run.figures()
    assert figures["step_period_ns"] == 200 * MS
    ratios = [name for name in figures if name.endswith("_ratio")]
    assert ratios
    assert all(0 <= figures[name] <= 1 for name in ratios)


@pytest.mark.parametrize("n_lost", [0, 9])
def test_figures_are_the_numbers_of_the_page(n_lost: int, tmp_path: Path) -> None:
    """Shares of GPU time are unknown, not 0% or 100%, if the kernels of 9 of 10 steps are lost."""
    write_nsys(launching(10, lambda step: step < n_lost).build(), tmp_path / "run.sqlite")
    run = tp.open(tmp_path / "run.sqlite")
    figures, verdict = run.figures(), run.page()._document.verdict
    assert verdict is not None
    parts = {f"{name}_ratio": ratio for name, ratio in verdict.parts.items()}
    ratios = {name: value for name, value in figures.items() if name.endswith("_ratio")}
    assert bool(ratios) is (n_lost == 0)
    assert ratios == {name: parts[name] for name in ratios}
    assert set(parts) - set(ratios) <= {"device_memory_ratio"}


def test_jobs_and_nodes_are_compared(folder: Path) -> None:
    assert len(tp.nodes(folder).to_frame("nodes")) == 2
    lost = tp.elastic(folder)
    assert lost.results
    with pytest.raises(UsageError, match="unknown table 'foo'; use "):
        lost.to_frame("foo")


def test_importing_everything_hides_nothing_of_python() -> None:
    program = (
        "import sys, builtins\n"
        "from traceprof import *\n"
        "sys.exit(0 if open is builtins.open and 'pandas' not in sys.modules else 1)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == 0
    assert dir(tp) == sorted(API)
    assert all(hasattr(tp, name) for name in API)


API = {
    *("__version__", "open", "Run", "Result", "Page", "record", "Recorded", "handler"),
    *("range", "step", "epoch", "metric", "mark", "is_recording"),
    *("compare", "Comparison", "accuracy", "elastic", "memory", "nodes", "scaling"),
    *("runs", "Runs"),
}
