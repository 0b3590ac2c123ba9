"""``traceprof doctor``: what can be recorded here."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from traceprof.cli.options import AsJson

__all__ = ["doctor"]

_SCHEMA = 1


def doctor(
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Fail where this is not there (nsys, torch, gpu …)."),
    ] = None,
    as_json: AsJson = False,
    clear_cache: Annotated[
        bool,
        typer.Option("--clear-cache", help="Remove what is kept of answers and exports; no more."),
    ] = False,
) -> None:
    """What can be recorded on this machine, and how to get the rest.

    Ends with 0 if torch or nsys can record here and everything required is there, else with 5.
    """
    if clear_cache:
        _clear_cache()
        return
    from traceprof.cli.output import out
    from traceprof.errors import RecordingError, UsageError
    from traceprof.recording.doctor import CHECKS, examine
    from traceprof.render.escape import plain_text

    unknown = sorted(set(require or ()) - set(CHECKS))
    if unknown:
        raise UsageError(f"--require {', '.join(unknown)}: choose from {', '.join(CHECKS)}")
    checks = examine()
    if as_json:
        listed = [check.to_dict() for check in checks]
        out(json.dumps({"schema": _SCHEMA, "checks": listed}, indent=1) + "\n")
    else:
        for check in checks:
            out(
                f"{'ok' if check.is_ok else '--'}  {check.name:13} {plain_text(check.found, 400)}\n"
            )
            if check.advice:
                out(f"{'':18}→ {plain_text(check.advice, 200)}\n")
    is_ok = {check.name: check.is_ok for check in checks}
    missing = [name for name in require or () if not is_ok[name]]
    if missing:
        raise RecordingError(f"missing here: {', '.join(missing)}")
    if not (is_ok["torch"] or is_ok["nsys"]):
        raise RecordingError("neither torch nor nsys is here: only named ranges can be recorded")


def _clear_cache() -> None:
    from traceprof.cache.entries import Cache
    from traceprof.cli.output import message
    from traceprof.units import format_bytes

    cache = Cache.of_user()
    if cache is None:
        message("the cache is off: nothing to remove")
        return
    gone = cache.clear()
    n_bytes = format_bytes(gone.total_bytes)
    message(f"removed {gone.entry_count} answers and exports, {n_bytes}, from {cache.folder}")
