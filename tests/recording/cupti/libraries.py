"""The recorder's library, and a stand-in for libcupti and libcuda, compiled of these sources."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "traceprof" / "recording" / "cupti"
STANDIN = Path(__file__).with_name("standin.c")
_STRICT = ("-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-O2")


@dataclass(frozen=True)
class Libraries:
    """Where the two are; beside the stand-in it is called libcuda, too."""

    standin: Path
    recorder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.standin.parent), "TRACEPROF_CUPTI": "calls=chosen"}


def compiler() -> str:
    """Return the C compiler, "" where there is none."""
    return os.environ.get("CC") or shutil.which("cc") or ""


def compiled_in(folder: Path) -> Libraries:
    """Compile both into a folder.

    Raises:
        ValueError: the compiler has something to say.
    """
    found = Libraries(folder / "libcupti.so.13", folder / "recorder.library")
    of_standin = ("-std=gnu99", "-Wl,-soname,libcupti.so.13", str(STANDIN))
    for target, arguments in (
        (found.standin, of_standin),
        (found.recorder, ("-std=c99", *map(str, sorted(SOURCES.glob("*.c"))))),
    ):
        command = [compiler(), *_STRICT, *arguments, "-o", str(target), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(done.stderr)
    (folder / "libcuda.so.1").symlink_to(found.standin.name)
    return found
