"""What a reader warned of, and what is missing, goes with every result into every form.

A command is tried on a file that is known to be cut off, and on a recording that lacks work.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import traceprof
from tests.measures.test_completeness import launching
from traceprof.cli import app
from traceprof.cli.commands import COMMANDS
from traceprof.formats.nsys.writer import write_nsys

CUT = "the file is truncated after"
LACKS = "40 of 100 kernel launches have no recorded kernel"
TABLES = ("breakdown", "gaps", "idle", "kernels", "copies", "steps", "launches", "path", "whatif")
DAMAGED = ("cut-off.json", CUT), ("incomplete.sqlite", LACKS)
ONE = [
    ["analyze", "RUN"],
    ["analyze", "RUN", "--json"],
    ["analyze", "RUN", "--markdown"],
    ["analyze", "RUN", "--full"],
    ["findings", "RUN"],
    ["breakdown", "RUN", "--window", "all"],
    ["breakdown", "RUN", "--window", "0ms..3ms"],
    *(["show", table, "RUN", *form] for table in TABLES for form in ([], ["--csv"], ["--json"])),
    ["show", "breakdown,steps", "RUN", "--markdown"],
    ["ops", "RUN", "--rows", "2"],
    ["ops", "RUN", "--csv"],
    ["ops", "RUN", "--json"],
    ["ops", "RUN", "--csv", "-o", "OUT.csv"],
    ["query", "RUN", "SELECT count(*) FROM kernels"],
    ["query", "RUN", "SELECT count(*) FROM kernels", "--csv"],
    ["query", "RUN", "SELECT count(*) FROM kernels", "--json"],
    ["query", "RUN", "SELECT count(*) FROM kernels", "-o", "OUT.csv"],
    ["explain", "RUN", "step:2", "--against", "step:7"],
    ["explain", "RUN", "step:2", "--against", "step:7", "--csv"],
    ["report", "RUN", "-o", "OUT.html"],
    ["timeline", "RUN", "-o", "OUT.html"],
    ["cut", "RUN", "-o", "OUT.part", "--window", "50%..100%"],
    *(["export", "RUN", "--to", form, "-o", "OUT"] for form in ("perfetto", "parquet", "csv")),
    *(["export", "RUN", "--to", form, "-o", "OUT"] for form in ("tensorboard", "openmetrics")),
    ["export", "RUN", "--to", "csv", "--results", "kernels", "-o", "OUT"],
    ["compare", "RUN", "GOOD"],
    ["compare", "GOOD", "RUN", "--json"],
    ["compare", "GOOD", "RUN", "--csv"],
    ["compare", "GOOD", "RUN", "--markdown"],
    ["compare", "GOOD", "RUN", "-o", "OUT.html"],
    ["report", "GOOD", "RUN", "-o", "OUT.html"],
    ["timeline", "GOOD", "vs", "RUN", "-o", "OUT.html"],
    ["scaling", "GOOD", "RUN"],
    ["nodes", "RUN"],
    ["runs", "show", "KEPT"],
    ["runs", "show", "KEPT", "--csv"],
    ["runs", "export", "KEPT"],
]
NOT_ABOUT_RESULTS = {
    **dict.fromkeys(("record", "recover", "doctor"), "they make traces"),
    "demo": "it analyzes the sample trace of the package",
    **dict.fromkeys(("watch", "capture"), "they look at a running program"),
    "try": "it runs programs, and times their steps itself",
    "info": "it reads no events: its readers' warnings are tested with them",
    "view": "its page is that of the timeline, its tables those of `show`",
    "memory": "it reads snapshots",
    "mcp": "it serves answers of other commands to programs",
    "accuracy": "traces hold no metrics here; logs are not cut off",
    "elastic": "it reads times of whole files",
    **dict.fromkeys(("add", "list", "tag", "rm", "import-log"), "the record of a run says it"),
}
runner = CliRunner()


def kineto(path: Path) -> Path:
    """Write 10 steps of 1 ms as torch.profiler does: calls first, kernels step by step."""
    events: list[dict[str, object]] = []

    def event(cat: str, name: str, at: float, length: float, tid: int, **more: object) -> None:
        same = {"ph": "X", "pid": 0 if cat == "kernel" else 1, "tid": tid}
        events.append({**same, "cat": cat, "name": name, "ts": at, "dur": length, "args": more})

    for step in range(10):
        start = 1_000.0 * step
        event("user_annotation", f"ProfilerStep#{step}", start, 1_000, 1)
        for i in range(10):
            known = {"correlation": 100 * step + i + 1}
            event("cuda_runtime", "cudaLaunchKernel", start + 5 * i, 4, 1, **known)
            about = {"device": 0, "stream": 7, **known}
            event("kernel", "gemm", start + 60 + 90 * i, 89, 7, **about)
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}
    head = {"schemaVersion": 1, "deviceProperties": [device]}
    path.write_text(json.dumps({**head, "traceEvents": events}, indent=1), "utf-8")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole trace, one that is cut off in step 9, and one that lacks work; the last two kept."""
    folder = tmp_path_factory.mktemp("caveats")
    text = kineto(folder / "good.json").read_text("utf-8")
    (folder / "cut-off.json").write_text(text[: text.index("ProfilerStep#9")], "utf-8")
    write_nsys(launching(10, lambda step: step < 4).build(), folder / "incomplete.sqlite")
    for name, _ in DAMAGED:
        database = folder / f"{name}.db"
        done = runner.invoke(app, ["runs", "add", str(folder / name), "--db", str(database)])
        assert done.exit_code == 0, done.output
    return folder


def run(arguments: list[str], name: str, files: Path, out: Path) -> tuple[Result, str]:
    """Run a command on a file; return what came of it, and all that it printed or wrote."""
    places = {"RUN": files / name, "GOOD": files / "good.json", "KEPT": Path(name.split(".")[0])}
    told = [
        str(places[one]) if one in places else one.replace("OUT", str(out / "out"))
        for one in arguments
    ]
    told += ["--db", str(files / f"{name}.db")] if arguments[0] == "runs" else []
    done = runner.invoke(app, told)
    written = [
        file.read_text("utf-8", "replace")
        for file in sorted(out.rglob("*"))
        if file.is_file() and file.suffix == ".html"
    ]
    return done, " ".join("\n".join([done.output, *written]).split())


@pytest.mark.parametrize(("name", "words"), DAMAGED)
@pytest.mark.parametrize("arguments", ONE, ids=" ".join)
def test_no_result_goes_without_them(
    arguments: list[str], name: str, words: str, files: Path, tmp_path: Path
) -> None:
    done, said = run(arguments, name, files, tmp_path)
    assert done.exit_code == 0, done.output
    # JSON of kept runs has templates.
    assert (words if arguments[:2] != ["runs", "export"] else "incomplete: ") in said


@pytest.mark.parametrize("arguments", ONE, ids=" ".join)
def test_a_whole_recording_has_none(arguments: list[str], files: Path, tmp_path: Path) -> None:
    if arguments[0] == "runs":
        return
    done, said = run(arguments, "good.json", files, tmp_path)
    assert done.exit_code == 0, done.output
    assert CUT not in said
    assert "incomplete:" not in said
    assert "is incomplete" not in said


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_what_programs_read_stays_what_it_was(form: str, files: Path) -> None:
    done = runner.invoke(app, ["show", "kernels", str(files / "incomplete.sqlite"), form])
    assert LACKS not in done.stdout or form == "--json"
    if form == "--json":
        (note,) = json.loads(done.stdout)["trace"]["incomplete"]
        assert note["text"] == LACKS
        assert done.stderr == ""
    else:
        assert done.stderr == f"traceprof: incomplete: {LACKS}\n"


def test_a_comparison_with_a_part_explains_nothing(files: Path) -> None:
    good, cut = str(files / "good.json"), str(files / "cut-off.json")
    told = json.loads(runner.invoke(app, ["compare", good, cut, "--json"]).stdout)
    assert told["verdict"][0]["text"] == (
        "cut-off is incomplete. traceprof does not explain the difference, because it may be "
        "missing data."
    )
    assert "difference" not in told["results"]
    same = files / "again" / "good.json"
    same.parent.mkdir(exist_ok=True)
    shutil.copy(good, same)
    whole = json.loads(runner.invoke(app, ["compare", good, str(same), "--json"]).stdout)
    assert "difference" in whole["results"]


def test_pictures_have_them_on_standard_error(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceprof.render.pictures.figure.render_picture", lambda *_: b"<svg/>")
    out = ["-o", str(tmp_path / "out.svg")]
    done = runner.invoke(app, ["timeline", str(files / "incomplete.sqlite"), *out])
    assert f"traceprof: incomplete: {LACKS}\n" in done.stderr


def test_they_are_told_anew_from_the_cache(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("traceprof.session.run_cache.is_settled", lambda _: True)
    command = ["show", "kernels", str(files / "incomplete.sqlite"), "--csv"]
    first, second = (runner.invoke(app, command) for _ in range(2))
    assert first.stderr == second.stderr == f"traceprof: incomplete: {LACKS}\n"
    assert first.stdout == second.stdout
    other = runner.invoke(app, ["show", "steps", str(files / "incomplete.sqlite"), "--csv"])
    assert other.stderr == first.stderr


def test_of_a_large_file_rows_are_passed_on_unchecked_which_is_said(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceprof.session.run.LARGE_BYTES", 0)
    command = ["query", str(files / "incomplete.sqlite"), "SELECT count(*) FROM kernels", "--csv"]
    assert runner.invoke(app, command).stderr == (
        "traceprof: Not checked for missing GPU activity, because the file is large. "
        "Run `traceprof show quality`.\n"
    )
    shown = runner.invoke(app, ["show", "kernels", str(files / "incomplete.sqlite"), "--csv"])
    assert LACKS in shown.stderr
    cut = runner.invoke(app, ["query", str(files / "cut-off.json"), *command[2:]])
    assert CUT in cut.stderr


@pytest.mark.parametrize(("name", "words"), DAMAGED)
def test_python_has_them_with_every_result(name: str, words: str, files: Path) -> None:
    opened = traceprof.open(files / name)
    for result in (opened.breakdown(), opened.within("all").kernels(), opened.explain("step:2")):
        assert any(words in text for text in result.caveats)
        assert words in repr(result)
        assert words in result._repr_html_()
    frame = opened.query("SELECT count(*) FROM kernels")
    assert any(words in text for text in frame.attrs["remarks"])
    comparison = traceprof.compare(files / "good.json", files / name)
    assert "is incomplete" in comparison.sentences[0]


def test_every_command_is_tried_or_has_a_reason_not_to_be() -> None:
    tried = {"show" if one[0] in TABLES else one[0] for one in ONE}
    names = {command.name for command in COMMANDS}
    assert names <= {*tried, *NOT_ABOUT_RESULTS, "runs"}
