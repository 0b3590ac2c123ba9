"""What ``import traceprof`` gives for reading traces."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import traceprof as tp
from tests import typing_example
from tests.builders import TraceBuilder
from tests.measures.generated_run import MS, Plan, make_run
from tests.requirements import ROOT
from traceprof.errors import TraceError, UsageError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures import ANALYSES
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
    assert not set(names) & set(dir(tp.Run))
    assert set(names) <= set(dir(run))
    assert run.step_phases().name == "step-phases"
    assert run.ranks().table.to_frame()["rank"].tolist() == [0, 1]
    with pytest.raises(AttributeError, match="a run has no 'brekdown'; analyses are alignment, "):
        run.brekdown()


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
    assert (found.name, found.scalars["own"], found.scalars["against"]) == (
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
    assert html.startswith('<div class="traceprof" style="max-width:100%;overflow-x:auto">')
    assert html.count("<table>") == html.count("</table>") >= 1
    assert ">rank</th>" in html
    assert "the first 12 of 20 rows" in html


def test_names_in_a_notebook_are_text(tmp_path: Path) -> None:
    path = tmp_path / "<b>.sqlite"
    write_nsys(TraceBuilder().kernel("<script>alert(1)</script>", 0, 10).build(), path)
    run = tp.open(path)
    html = run.kernels()._repr_html_() + run._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;" in html


def test_the_readme_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(
        r"## From Python\n\n```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S
    )
    write_nsys(make_run(Plan(n_ranks=1)).members[0].trace, tmp_path / "run.sqlite")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "1 rows x" in printed
    # Ten steps of 200 ms: from the first work, 10 ns on, to the end of that of the last.
    assert "1899999990" in printed


def test_a_program_that_uses_it_type_checks_and_runs(folder: Path) -> None:
    assert 0 < typing_example.idle_share(folder, "steady") < 1
    assert typing_example.slow_steps(sorted(folder.iterdir())) is not None
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "-p", "tests.typing_example"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_importing_everything_hides_nothing_of_python() -> None:
    program = (
        "import sys, builtins\n"
        "from traceprof import *\n"
        "sys.exit(0 if open is builtins.open and 'pandas' not in sys.modules else 1)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == 0
    assert {"open", "Run", "Result", "step"} <= set(dir(tp))
