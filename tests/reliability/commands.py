"""Runs the command line in children of a server, with faults; and the commands that write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from tests.requirements import ROOT


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code (minus the signal that killed it), and what it said."""

    code: int
    cpu_s: float
    stdout: str
    stderr: str
    is_hit: bool
    """Whether the step that was to fail was reached."""
    is_removing: bool = False
    """Whether that step would have removed something."""
    peak_bytes: int = 0
    """The most memory that was resident, that of all modules included."""

    @property
    def is_one_line(self) -> bool:
        """Whether it said what is wrong in one line, as documented."""
        lines = self.stderr.splitlines()
        said = [line for line in lines if line.startswith("traceprof: ")]
        return bool(lines) and said == lines and "internal error" not in self.stderr


class Server:
    """The process that forks; one command at a time."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._said: list[Path] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OPENBLAS_NUM_THREADS": "1",
                "ARROW_DEFAULT_MEMORY_POOL": "system",
                "PYTHONUNBUFFERED": "1",
                "TMPDIR": str(folder / "temporary"),
                "TRACEPROF_RUNS": str(folder / "runs.db"),
                "TRACEPROF_CACHE": str(folder / "cache"),
                **environment,
            },
        )
        (folder / "temporary").mkdir(exist_ok=True)

    def start(self, arguments: Sequence[str | Path], **fault: Any) -> int:
        """Start a command in the server's folder; return its process."""
        asked = {
            "arguments": [str(one) for one in arguments],
            "folder": str(self.folder),
            "stdout": str(self.folder / "stdout.txt"),
            "stderr": str(self.folder / "stderr.txt"),
            **fault,
        }
        self._said = [Path(asked[name]) for name in ("stdout", "stderr")]
        stdin, stdout = self._streams()
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        return int(json.loads(stdout.readline())["pid"])

    def end(self) -> Ended:
        """Wait for the command that was started."""
        told = json.loads(self._streams()[1].readline())
        stdout, stderr = (_text(path) for path in self._said)
        return Ended(
            told["code"],
            told["cpu_s"],
            stdout,
            stderr,
            is_hit=told["is_hit"],
            is_removing=told["is_removing"],
            peak_bytes=told["peak_bytes"],
        )

    def run(self, arguments: Sequence[str | Path], **fault: Any) -> Ended:
        """Run a command to its end."""
        self.start(arguments, **fault)
        return self.end()

    def close(self) -> None:
        """End the server, and what it runs with it."""
        self._process.kill()
        self._process.communicate()

    def _streams(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


@contextmanager
def serving(
    folder: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Server]:
    """Give a server that works in ``folder``, with these variables besides."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(folder, environment)
    try:
        yield server
    finally:
        server.close()


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.is_file() else ""
