"""What a machine does now and then, at a chosen moment: machine.c, loaded before a program."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tests.requirements import require

_SOURCE: Final = Path(__file__).with_suffix(".c")
_FOLDER: Final = tempfile.TemporaryDirectory(prefix="traceprof-machine-")


@cache
def loaded_before() -> dict[str, str]:
    """Return the variables that load the library before a program; it is compiled for that."""
    library = Path(_FOLDER.name, "machine.so")
    command = (require("cc"), "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl")
    subprocess.run(command, check=True)
    Path(_FOLDER.name).chmod(0o755)
    return {"LD_PRELOAD": str(library)}


class Fault:
    """A fault from the n-th time on (``is_once``: then alone), and whether it came to that.

    ``name`` and ``value`` are as machine.c describes them; what it counts lies in ``counts``.
    """

    def __init__(
        self, counts: Path, name: str, value: str, number: int, *, is_once: bool = False
    ) -> None:
        self._counts, self._name, self._number = counts, name, number
        counts.unlink(missing_ok=True)
        told = f"{value}:{number}" if value else str(number)
        self.environment = {f"FAULT_{name}": told, "FAULT_COUNTS": str(counts)}
        if is_once:
            self.environment["FAULT_ONCE"] = "1"

    @property
    def n_seen(self) -> int:
        """How many processes and threads, or reads, there were."""
        if not self._counts.exists():
            return 0
        data = self._counts.read_bytes()
        return int(struct.unpack("=2q", data)[self._name == "READS"])

    @property
    def is_hit(self) -> bool:
        """Whether it came to that."""
        return self.n_seen >= self._number


def in_folder(folder: Path) -> dict[str, str]:
    """Return the variable that says whose files are on another machine."""
    return {"FAULT_FOLDER": os.path.realpath(folder)}
