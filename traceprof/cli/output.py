"""Where the command line prints: results on standard output, messages on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["message", "out", "print_view", "write_output"]


def out(text: str) -> None:
    """Print ``text`` as it is, as UTF-8 whatever the terminal's encoding."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def print_view(view: Callable[[int], RenderableType]) -> None:
    """Print what ``view`` makes for the width of the terminal (at least 80 columns)."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    console.width = max(80, console.width)
    console.print(view(console.width))


def message(text: str) -> None:
    """Print a message of our own on standard error."""
    from traceprof.render.escape import plain_text

    sys.stderr.write(f"traceprof: {plain_text(text, 2_000)}\n")


def write_output(path: Path, text: str | bytes, *, force: bool) -> None:
    """Write ``text`` to ``path``: wholly or not at all, never over a file without ``force``.

    Raises:
        UsageError: the file exists, or its folder does not or cannot be written to.
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists: choose another name or use --force")
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
