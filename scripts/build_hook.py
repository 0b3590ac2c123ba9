"""Compile what wheels contain beside Python (run by hatchling, see pyproject.toml).

It is C99 without Python in it, in two libraries, so that a wheel fits every Python of its platform:
the decoders of files, and, on Linux, the recorder that is loaded into recorded programs.
Where there is no compiler, or no POSIX, the wheel is one of Python alone: traceprof does the same
there, slower. ``TRACEPROF_COMPILED=1`` makes a failure an error, ``0`` compiles nothing.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DECODERS = Path("traceprof", "formats", "compiled", "compiled.library")
RECORDER = Path("traceprof", "recording", "cupti", "recorder.library")
LIBRARIES = (DECODERS, RECORDER) if sys.platform == "linux" else (DECODERS,)
OLDEST_MACOS = (11, 0)


class CompiledLibraries(BuildHookInterface):  # type: ignore[type-arg]
    """The libraries, in the wheel or, of an editable install, in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        wish = os.environ.get("TRACEPROF_COMPILED", "")
        if self.target_name != "wheel" or wish == "0":
            return
        try:
            for library in LIBRARIES:
                compile_library(Path(self.root, library))
        except (OSError, subprocess.SubprocessError) as error:
            if wish == "1":
                raise
            self.app.display_warning(f"traceprof is slower without a C compiler: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        build_data["artifacts"] += [library.as_posix() for library in LIBRARIES]


def platform_tag() -> str:
    """Return the tag of this platform, of macOS for this processor alone."""
    if sys.platform == "darwin":
        return f"macosx_{OLDEST_MACOS[0]}_{OLDEST_MACOS[1]}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compile_library(library: Path) -> None:
    """Compile all C beside ``library`` into it, by the C compiler that Python names.

    Raises:
        OSError: there is none, or this is no POSIX system.
        subprocess.SubprocessError: it failed.
    """
    if os.name != "posix":
        raise OSError("no POSIX system")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    flags = shlex.split(os.environ.get("CFLAGS", "-O3"))
    if sys.platform == "darwin":
        flags.append(f"-mmacosx-version-min={'.'.join(map(str, OLDEST_MACOS))}")
    unfinished = library.with_suffix(f".{os.getpid()}")
    flags += ["-std=c99", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(unfinished)]
    try:
        command = [compiler, *flags, *map(str, sorted(library.parent.glob("*.c")))]
        command += ["-ldl", "-lpthread"] if library.name == RECORDER.name else []
        subprocess.run(command, check=True, capture_output=True, text=True)
        unfinished.replace(library)  # who has loaded the old one keeps it
    finally:
        unfinished.unlink(missing_ok=True)
