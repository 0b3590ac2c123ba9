"""Runs as a JSON file, to be given away or kept beside a paper, and added again.

``{"schema": "traceprof.runs/1", "runs": […]}``, with runs as `traceprof.store.summaries` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceprof.errors import StoreError
from traceprof.files import kind_of_no_file
from traceprof.model.summary import Summary
from traceprof.store.declared import from_json, to_json
from traceprof.store.summaries import masked_run, plain_run, run_of
from traceprof.version import __version__

_KIND: Final = "traceprof.runs/"
SCHEMA: Final = f"{_KIND}1"
"""The shape of the file; the number grows when a reader of the old one would break."""

_HEAD_BYTES: Final = 4096


def exported_runs(runs: Sequence[Summary]) -> str:
    """Return ``runs`` as the text of such a file, secrets masked."""
    document = {
        "schema": SCHEMA,
        "traceprof": __version__,
        "runs": [plain_run(masked_run(run)) for run in runs],
    }
    return to_json(document) + "\n"


def is_exported(path: Path) -> bool:
    """Return whether the file ``path`` holds exported runs, of whichever version."""
    if kind_of_no_file(path):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).lstrip()
    except OSError:
        return False
    return head.startswith(b"{") and b'"schema"' in head and _KIND.encode() in head


def read_exported(path: Path) -> list[Summary]:
    """Return the runs in the file ``path``.

    Raises:
        StoreError: it cannot be read, is of a version that only newer programs know, or damaged.
    """
    try:
        document = from_json(path.read_text("utf-8"))
        if document["schema"] != SCHEMA:
            raise StoreError(
                f"{path}: {document['schema']}, and this traceprof reads {SCHEMA}: "
                "update traceprof, or export the run again"
            )
        return [run_of(plain) for plain in document["runs"]]
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path}: exported runs that are damaged ({error!r})") from error
