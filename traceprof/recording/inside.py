"""Record a part of a program from within its own process (`traceprof.record`).

The hooks are the same as those of `traceprof record`. They are removed at the end, and the program
continues unchanged.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from traceprof.annotate import api
from traceprof.errors import TraceprofError, UsageError
from traceprof.recording.job import world_size
from traceprof.recording.outputs import check_output
from traceprof.recording.program import INJECT_FOLDER
from traceprof.recording.recorders.embedded import RECORDER, environment_for
from traceprof.recording.request import Recording, RecordRequest, RunRecorded
from traceprof.recording.session import OngoingRecording, recorded_with

_RUNTIME: Final = "_traceprof_runtime"
_WINDOWS: Final = "1,10,200"  # the program already runs: skip 1 step, then record 10 of every 200
_INSIDE_VARIABLES: Final = {"TRACEPROF_INSIDE": "1"}
_active: list[InsideRecording] = []
"""The recording in progress, if there is one."""


@dataclass(slots=True, eq=False)
class InsideRecording:
    """A context manager that records this process and its forks with torch.profiler.

    An invalid request is an error before anything is recorded. Errors while writing the trace are
    printed on standard error, and the program continues. If `traceprof record` started the program,
    the context manager does nothing, because everything is recorded already. ``recording`` is set
    at the end.
    """

    request: RecordRequest
    recording: Recording | None = None
    _ongoing: OngoingRecording | None = None
    _install: Any = None
    _process: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        """Start recording.

        Raises:
            UsageError: another recording is active, or the trace cannot be written to the output.
        """
        if _active:
            raise UsageError(f"already recording to {_active[0].request.output}; end that first")
        if api.is_recording():
            _print_note(
                "traceprof record already records this program; this second recording is skipped"
            )
            return self
        _check_ranks(self.request)
        check_output(self.request)
        self._ongoing = self._stack.enter_context(recorded_with(RECORDER.name, self.request))
        try:
            with _settings(
                environment_for(self.request, self._ongoing.folder, _WINDOWS) | _INSIDE_VARIABLES
            ):
                self._install = importlib.import_module(f"{_RUNTIME}.install")
                explicit = importlib.import_module(f"{_RUNTIME}.explicit")
            self._install.begin_inside()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())
            raise
        api.attach(explicit)
        self._process = os.getpid()
        _active.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Stop recording and write the trace."""
        if self._ongoing is None or self not in _active or self._process != os.getpid():
            return
        _active.remove(self)
        api.attach(None)
        self._ongoing.run = RunRecorded(int(kind is not None))
        self._stack.callback(self._install.end_inside, kind is not None)  # runs first
        try:
            self._stack.close()
        except TraceprofError as failure:
            _print_note(str(failure))
            if isinstance(failure.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            return
        self.recording = replace(self._ongoing.recording, exit_code=None)
        for line in self.recording.lines:
            _print_note(line)


def _check_ranks(request: RecordRequest) -> None:
    """Check that several ranks do not record into one file.

    Raises:
        UsageError: they do.
    """
    size = 0 if request.is_folder else world_size()
    if size > 1:
        name = request.output.with_suffix("")
        raise UsageError(f"{size} ranks need one file each; give a folder ({name}/)")


@contextmanager
def _settings(environment: Mapping[str, str]) -> Iterator[None]:
    """Set the environment variables and the import path that the runtime reads.

    The runtime reads them when it is imported in the block. They are restored afterwards.
    """
    settings = {name: text for name, text in environment.items() if name.startswith("TRACEPROF_")}
    before = dict(os.environ)
    os.environ.update(settings)
    sys.path.insert(0, str(INJECT_FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(INJECT_FOLDER))
        for name in settings.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in settings.keys() & before.keys()})


def _print_note(line: str) -> None:
    sys.stderr.write(f"traceprof: {line}\n")
