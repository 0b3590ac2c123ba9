"""What is printed where nothing can be printed, and what ends a command from outside."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.requirements import ROOT
from traceprof.cli import main
from traceprof.formats.nsys.writer import write_nsys

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="devices and limits of Linux")
FULL = "/dev/full"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), tmp_path / "t.sqlite")
    return str(tmp_path / "t.sqlite")


def run(*arguments: str, shell: str = "", **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the program, as a shell would with ``shell`` behind its command."""
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "traceprof"]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **more,
    )


@pytest.mark.parametrize("shell", [f">{FULL}", ">&-"])
def test_an_answer_that_cannot_be_printed_is_one_line(trace: str, shell: str) -> None:
    done = run("show", "kernels", trace, shell=shell)
    assert done.returncode == 1
    assert done.stderr.startswith(
        ("traceprof: cannot write to standard output: ", "traceprof: standard output is closed")
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", [f"2>{FULL}", "2>&-"])
def test_an_error_that_cannot_be_told_keeps_its_code(shell: str) -> None:
    done = run("show", "kernels", "/no/such.sqlite", shell=shell)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert run("show", "--no-such-option", shell=shell).returncode == 2


@pytest.fixture
def long(tmp_path: Path) -> tuple[str, ...]:
    """A command that prints some 100 kB."""
    builder = TraceBuilder()
    for at in range(600):
        builder.kernel(f"gemm_{at}", 10 * at, 10 * at + 5)
    write_nsys(builder.build(), tmp_path / "long.sqlite")
    return ("ops", str(tmp_path / "long.sqlite"), "--json")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_limit_of_file_sizes_cuts_off_is_one_line(
    long: tuple[str, ...], unbuffered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    monkeypatch.setenv("TRACEPROF_CACHE", "0")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_480,) * 2)

    done = run(*long, shell=f">{tmp_path / 'out'}", preexec_fn=limit)
    assert done.returncode == 1
    assert done.stderr == "traceprof: cannot write to standard output: File too large\n"
    assert (tmp_path / "out").stat().st_size == 20_480


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_slow_pipe_that_does_not_block_gets_everything(
    long: tuple[str, ...], unbuffered: str
) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen(
        [sys.executable, "-m", "traceprof", *long], stdout=writing, stderr=writing, env=environment
    )
    os.close(writing)
    found = b"".join(iter(lambda: os.read(reading, 100), b""))
    os.close(reading)
    assert process.wait() == 0
    assert found.decode() == run(*long).stdout


@pytest.mark.parametrize("words", ["--help", "--version", "show --help", "help", "show"])
def test_help_that_nobody_reads_or_that_is_cut_off_ends_as_answers_do(words: str) -> None:
    full = run(*words.split(), shell=f">{FULL}")
    assert (full.returncode, full.stderr.count("\n")) == (1, 1)
    assert full.stderr.startswith("traceprof: cannot write to standard output: ")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "traceprof", *words.split()]
    unread = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (unread.returncode, unread.stderr) == (0, b"")


def test_completions_that_cannot_be_printed_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TRACEPROF_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "traceprof sh")
    monkeypatch.setenv("COMP_CWORD", "1")
    done = run(shell=f">{FULL}")
    assert done.returncode == 1
    assert done.stderr.startswith("traceprof: cannot write to standard output: ")
    assert done.stderr.count("\n") == 1


def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(**_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("traceprof.cli.app", full)
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.startswith("traceprof: not enough memory: ")


def test_a_real_limit_of_memory_is_one_line(trace: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (160 << 20,) * 2)

    done = run("show", "kernels", trace, preexec_fn=limit)
    assert done.returncode == 1
    assert done.stderr.startswith("traceprof: not enough memory: 160 MiB are allowed here")
    assert done.stderr.count("\n") == 1


def interrupted(how: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program, with something happening while it is loaded."""
    (folder / "sitecustomize.py").write_text(
        "import os, signal, sys, weakref\n"
        "class Finder:\n"
        f"    def find_spec(self, name, *rest):\n        if name == 'typer': {how}()\n"
        "class Thing: pass\n"
        "def interrupt(*_): os.kill(os.getpid(), signal.SIGINT)\n"
        "def swallow():\n"
        "    try: interrupt()\n"
        "    except KeyboardInterrupt: pass\n"
        "    signal.pause()\n"
        "def in_callback():\n"
        "    thing = Thing()\n"
        "    kept = weakref.ref(thing, interrupt)\n"
        "    del thing\n"
        "    signal.pause()\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "traceprof", "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
    )


@pytest.mark.parametrize("how", ["interrupt", "swallow", "in_callback"])
def test_an_interrupt_while_the_program_is_loaded_ends_it(how: str, tmp_path: Path) -> None:
    done = interrupted(how, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize(
    "command",
    [
        *(["cut", "-w", "all"], ["export", "--to", "perfetto"], ["export", "--to", "parquet"]),
        *(["report"], ["timeline"]),
    ],
    ids=" ".join,
)
def test_who_is_ended_as_it_writes_leaves_nothing_and_says_what_ended_it(
    trace: Path, tmp_path: Path, command: list[str], name: str
) -> None:
    """Just before the new file, or folder, gets its name."""
    folder = tmp_path / "hook"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, pathlib, signal\n"
        "def end(*_, **__):\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "os.link = pathlib.Path.replace = end\n"
    )
    output = tmp_path / "output.html"
    done = subprocess.run(
        [sys.executable, "-m", "traceprof", *command, str(trace), "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
            "TRACEPROF_CACHE": "0",
        },
    )
    assert done.returncode == 128 + getattr(signal, name), done.stderr
    assert set(tmp_path.iterdir()) == {folder, Path(trace)}
