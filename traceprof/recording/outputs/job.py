"""One recording as it takes shape: what was asked for, what ran, what was captured."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from traceprof.formats.shared.redaction import without_secrets, worth_seeking
from traceprof.recording.gathering.captured import Captured
from traceprof.recording.outputs.places import Places
from traceprof.recording.request import Recorder, RecordRequest, RunRecorded
from traceprof.secrets import masked_command, masked_name, masked_text, secrets_of, storable
from traceprof.values import dataclass
from traceprof.version import __version__

__all__ = ["Job", "label_of"]

_LABEL_VARIABLES = ("TRACEPROF_RUN", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True)
class Job:
    """Everything that the files of a recording are written from.

    ``label`` and ``name`` are what the run and its job are called, ``host`` is where it ran.
    """

    request: RecordRequest
    recorder: Recorder
    run: RunRecorded
    captured: Captured
    facts: Mapping[str, str]
    started_s: float
    ended_s: float
    is_joining: bool = False
    label: str = ""
    name: str = ""
    host: str = field(default_factory=socket.gethostname)

    @cached_property
    def places(self) -> Places:
        """The names of files in the folder of the recording."""
        replaces = self.request.force and not self.is_joining
        return Places(self.request.output, self.started_s, replaces=replaces, host=self.host)

    @cached_property
    def secrets(self) -> Sequence[str]:
        """The secrets of the command line that are looked for in names, too."""
        return worth_seeking(
            part for secret in secrets_of(self.request.command) for part in secret.hidden
        )

    def shown_name(self, name: str) -> str:
        """Return the name of a range, as it may be shown."""
        return masked_name(without_secrets(name, self.secrets))

    @property
    def recorder_name(self) -> str:
        """The recorder that did it in the end."""
        return self.run.recorder or self.recorder.name

    def manifest(self) -> dict[str, Any]:
        """Return who recorded what, when and how."""
        return {
            "traceprof": __version__,
            "recorder": self.recorder_name,
            "label": masked_text(self.label) or f"{self.host}-{int(self.started_s)}",
            "job": masked_text(storable(self.name)),
            "host": self.host,
            "command": " ".join(masked_command(self.request.command)),
            "exit_code": self.run.exit_code,
            "started": _utc(self.started_s),
            "ended": _utc(self.ended_s),
        }

    def texts(self) -> dict[str, str]:
        """Return the manifest as every file of the recording repeats it."""
        found = self.manifest().items()
        return {name: str(value) for name, value in found if value is not None}


def label_of(request: RecordRequest) -> str:
    """Return what the nodes of one run share where somebody says it, "" where nobody does."""
    given = next(filter(None, map(os.environ.get, _LABEL_VARIABLES)), "")
    return given or (request.output.absolute().name if request.is_folder else "")


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
