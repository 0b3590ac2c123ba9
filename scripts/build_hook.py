"""Compile what wheels contain beside Python (run by hatchling, see pyproject.toml).

It is C99 without Python in it, one library, so that a wheel fits every Python of its platform.
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

FOLDER = Path("traceprof", "formats", "compiled")
LIBRARY = FOLDER / "compiled.library"
OLDEST_MACOS = (11, 0)


class CompiledDecoders(BuildHookInterface):  # type: ignore[type-arg]
    """The decoders of formats, in the wheel or, of an editable install, in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        wish = os.environ.get("TRACEPROF_COMPILED", "")
        if self.target_name != "wheel" or wish == "0":
            return
        try:
            compile_library(Path(self.root))
        except (OSError, subprocess.SubprocessError) as error:
            if wish == "1":
                raise
            self.app.display_warning(f"traceprof is slower without a C compiler: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        build_data["artifacts"].append(LIBRARY.as_posix())


def platform_tag() -> str:
    """Return the tag of this platform, of macOS for this processor alone."""
    if sys.platform == "darwin":
        return f"macosx_{OLDEST_MACOS[0]}_{OLDEST_MACOS[1]}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compile_library(root: Path) -> None:
    """Compile the decoders into the checkout ``root``, by the C compiler that Python names.

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
    unfinished = root / LIBRARY.with_suffix(f".{os.getpid()}")
    flags += ["-std=c99", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(unfinished)]
    try:
        command = [compiler, *flags, *map(str, sorted((root / FOLDER).glob("*.c")))]
        subprocess.run(command, check=True, capture_output=True, text=True)
        unfinished.replace(root / LIBRARY)  # who has loaded the old one keeps it
    finally:
        unfinished.unlink(missing_ok=True)
