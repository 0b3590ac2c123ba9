"""What people type who guess: words of other tools, options first, files by their names."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.cli.registry import COMMANDS, near_words
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures import analysis_names, names_shown


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A trace in the folder where the commands run."""
    monkeypatch.chdir(tmp_path)
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).kernel("add", 10, 12).build(), Path("t.sqlite"))
    return "t.sqlite"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="traceprof")


def test_near_words_mean_commands_and_tables_that_there_are() -> None:
    known = {command.name for command in COMMANDS}
    taken = known | {*analysis_names(), "help"}
    for word, meant in near_words().items():
        command, *rest = meant.split()
        assert command in known, word
        assert word not in taken, word
        if command == "show":
            assert names_shown(rest[0], rest[2] if "--by" in rest else None), word


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("top t.sqlite -n 1", "show kernels t.sqlite -n 1"),
        ("STATS t.sqlite", "show summary t.sqlite"),
        ("nccl t.sqlite --json", "show collectives t.sqlite --json"),
        ("kernels t.sqlite --by class", "show kernels t.sqlite --by class"),
        ("classes t.sqlite", "show kernels t.sqlite --by class"),
        ("analyze t.sqlite", "analyze t.sqlite"),
        ("-w all t.sqlite", "analyze t.sqlite -w all"),
        ("--window=all t.sqlite", "analyze t.sqlite --window all"),
        ("--json --window all show kernels t.sqlite", "show kernels t.sqlite --json -w all"),
        ("--by class show kernels t.sqlite", "show kernels t.sqlite --by class"),
        (
            "--window all --by class show kernels t.sqlite",
            "show kernels t.sqlite --by class -w all",
        ),
        ("--against step:2 explain t.sqlite step:3", "explain t.sqlite step:3 --against step:2"),
        ("explain t.sqlite", "explain t.sqlite slowest"),
        ("roofline t.sqlite", "show flops t.sqlite"),
        ("ops t.sqlite --rank 0 --device 0", "ops t.sqlite --ranks 0 --devices 0"),
    ],
)
def test_what_is_guessed_does_what_is_meant(trace: str, typed: str, meant: str) -> None:
    first, second = run(*typed.split()), run(*meant.split())
    assert first.stdout == second.stdout
    assert first.exit_code == second.exit_code


def test_a_near_word_says_what_it_is_taken_for(trace: str) -> None:
    assert run("top", trace).stderr == "traceprof: running `traceprof show kernels` for 'top'\n"
    assert run("top", trace, "-q").stderr == ""


def test_no_program_is_run_on_a_guess(trace: str) -> None:
    done = run("profile", "--", "touch", "made")
    assert done.exit_code == 2
    assert "did you mean `traceprof record -- COMMAND`?" in done.stderr
    assert not Path("made").exists()


def test_a_file_with_a_near_word_for_a_name_is_a_trace(trace: str) -> None:
    Path("top").write_bytes(Path(trace).read_bytes())
    assert run("top", "--json").stdout == run("analyze", "top", "--json").stdout


def test_columns_are_chosen_in_every_form(trace: str) -> None:
    asked = ("show", "kernels", trace, "--columns", "total_ns,name", "--window", "all")
    assert list(csv.reader(run(*asked, "--csv").stdout.splitlines())) == [
        ["total_ns", "name"],
        ["10", "gemm"],
        ["2", "add"],
    ]
    (table,) = json.loads(run(*asked, "--json").stdout)["results"]["kernels"]["tables"].values()
    assert [column["name"] for column in table["columns"]] == ["total_ns", "name"]
    assert [{**row, "key": ""} for row in table["rows"]] == [
        {"key": "", "total_ns": 10, "name": "gemm"},
        {"key": "", "total_ns": 2, "name": "add"},
    ]
    text = run(*asked).stdout.splitlines()
    (heads,) = (line for line in text if line.split()[:1] == ["total"])
    assert heads.split() == ["total", "name"]
    assert "| total | name |" in run(*asked, "--markdown").stdout
    by_itself = run("show", "kernels,streams", trace, "--columns", "name").stdout
    assert "gemm" in by_itself
    assert by_itself.count(" ──") == 1  # a table that has none of them is not shown


def test_all_chosen_columns_are_shown_however_narrow_the_terminal(trace: str) -> None:
    columns = "name,activity,count,total_ns,share_ratio,mean_ns,median_ns,min_ns,max_ns"
    narrow = CliRunner(env={"COLUMNS": "40"})
    cut = narrow.invoke(app, ["show", "kernels", trace]).stdout
    assert "hidden columns: " in cut
    assert "--wide shows all columns, --columns selects columns" in " ".join(cut.split())
    assert max(map(len, cut.splitlines())) <= 80
    whole = narrow.invoke(app, ["show", "kernels", trace, "--columns", columns]).stdout
    assert "not shown" not in whole


def test_a_column_that_is_none_is_refused(trace: str) -> None:
    for form in ("--csv", "--json", "--markdown", "--wide"):
        done = run("show", "kernels", trace, "--columns", "totall_ns", form)
        assert done.exit_code == 2
        assert "unknown column 'totall_ns'; did you mean 'total_ns'?" in done.stderr


def test_columns_may_be_called_as_their_headings(trace: str) -> None:
    by_name = run("show", "kernels", trace, "--csv", "--columns", "name,total_ns,share_ratio")
    by_heading = run("show", "kernels", trace, "--csv", "--columns", "name,total,share %")
    assert by_heading.stdout == by_name.stdout != ""


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("x.html", "<!doctype html>"),
        ("x.json", "{"),
        ("x.csv", "name,"),
        ("x.md", "# "),
        ("x.txt", "t.sqlite"),
        ("x", "t.sqlite"),
    ],
)
def test_an_answer_is_written_as_the_name_of_its_file_says(
    trace: str, name: str, begin: str
) -> None:
    done = run("show", "kernels", trace, "-o", name)
    assert (done.exit_code, done.stdout) == (0, "")
    assert Path(name).read_text("utf-8").lower().startswith(begin)
    again = run("show", "kernels", trace, "-o", name)
    assert again.exit_code == 2
    assert "exists" in again.stderr
    assert run("show", "kernels", trace, "-o", name, "-f", "--json", "-q").stderr == ""
    assert Path(name).read_text("utf-8").startswith("{")


@pytest.mark.parametrize(
    "words",
    [
        ("timeline", "t.sqlite", "-o", "x.pdf"),
        ("report", "t.sqlite", "-o", "x.pdf"),
        ("show", "kernels", "t.sqlite", "-o", "x.pdf"),
        ("analyze", "t.sqlite", "-o", "x.png"),
        ("info", "t.sqlite", "-o", "x.html"),
        ("ops", "t.sqlite", "-o", "x.html"),
        ("query", "t.sqlite", "SELECT 1", "-o", "x.xlsx"),
        ("compare", "t.sqlite", "t.sqlite", "-o", "x.pdf"),
    ],
)
def test_no_file_holds_what_its_name_does_not_say(trace: str, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert f"{words[-1]}: cannot write {Path(words[-1]).suffix}; use ." in done.stderr
    assert not Path(words[-1]).exists()


def test_one_may_ask_for_no_messages_or_for_more(trace: str) -> None:
    assert run("report", trace, "-q").stderr == ""
    assert "wrote " in run("report", trace, "-f").stderr
    assert " s\n" in run("report", trace, "-f", "-v").stderr
    assert "No such file" in run("report", "missing.sqlite", "-q").stderr


def test_the_version_is_said() -> None:
    assert run("-V").stdout == run("--version").stdout != ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("show kernels t.sqlite --bla", "no such option: --bla"),
        ("export t.sqlite -o x", "missing option '--to' (Format to write: perfetto, chrome, "),
        ("analyze t.sqlite --rows 0", "invalid value for '--rows' / '-n': "),
        ("show kernels t.sqlite --rows", "option '--rows' requires an argument"),
        ("runs shw", "no such command 'shw'"),
    ],
)
def test_an_error_of_the_command_line_is_one_line_like_every_other(
    trace: str, words: str, message: str
) -> None:
    done = run(*words.split())
    assert done.exit_code == 2
    assert done.stderr.startswith(f"traceprof: {message}")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("form", ["--csv", "--json", "--markdown", "--wide"])
def test_what_was_not_recorded_has_its_exit_code_in_every_form(trace: str, form: str) -> None:
    for noun in ("steps", "memory", "operators"):
        assert [run("show", noun, trace, form).exit_code for _ in range(2)] == [4, 4], noun
