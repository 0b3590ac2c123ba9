"""Recording from inside: a program that runs already records a part of itself.

The hooks are those of `traceprof record`; at the end they go, and all is as it was before.
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
from traceprof.recording.session import Begun, recorded_with

_RUNTIME: Final = "_traceprof_runtime"
_WINDOWS: Final = "1,10,200"  # the program has begun before: skip 1 step, then 10 of every 200
_INSIDE: Final = {"TRACEPROF_INSIDE": "1"}
_open: list[InsideRecording] = []
"""The one that goes on, if there is one."""


@dataclass(slots=True, eq=False)
class InsideRecording:
    """A context in which this process, and what it forks, is recorded with torch's profiler.

    What is wrong with the request is an error before anything is recorded. What goes wrong when the
    trace is written is said on standard error: the program goes on. Where `traceprof record`
    started the program it does nothing: that has everything. ``recording`` is there at the end.
    """

    request: RecordRequest
    recording: Recording | None = None
    _begun: Begun | None = None
    _install: Any = None
    _process: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        """Begin to record.

        Raises:
            UsageError: a recording goes on already, or the trace cannot be written there.
        """
        if _open:
            raise UsageError(f"already recording to {_open[0].request.output}; end that first")
        if api.is_recording():
            _say("traceprof record already records this program; this second recording is skipped")
            return self
        _check_ranks(self.request)
        check_output(self.request)
        self._begun = self._stack.enter_context(recorded_with(RECORDER.name, self.request))
        try:
            with _settings(environment_for(self.request, self._begun.folder, _WINDOWS) | _INSIDE):
                self._install = importlib.import_module(f"{_RUNTIME}.install")
                explicit = importlib.import_module(f"{_RUNTIME}.explicit")
            self._install.begin_inside()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())
            raise
        api.attach(explicit)
        self._process = os.getpid()
        _open.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """End the recording and write its trace."""
        if self._begun is None or self not in _open or self._process != os.getpid():
            return
        _open.remove(self)
        api.attach(None)
        self._install.end_inside(kind is not None)
        self._begun.run = RunRecorded(int(kind is not None))
        try:
            self._stack.close()
        except TraceprofError as failure:
            _say(str(failure))
            if isinstance(failure.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            return
        self.recording = replace(self._begun.recording, exit_code=None)
        for line in self.recording.lines:
            _say(line)


def _check_ranks(request: RecordRequest) -> None:
    size = 0 if request.is_folder else world_size()
    if size > 1:
        name = request.output.with_suffix("")
        raise UsageError(f"{size} ranks need one file each; give a folder ({name}/)")


@contextmanager
def _settings(environment: Mapping[str, str]) -> Iterator[None]:
    """Have the runtime, which is imported now, find what it is asked for."""
    asked = {name: text for name, text in environment.items() if name.startswith("TRACEPROF_")}
    before = dict(os.environ)
    os.environ.update(asked)
    sys.path.insert(0, str(INJECT_FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(INJECT_FOLDER))
        for name in asked.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in asked.keys() & before.keys()})


def _say(line: str) -> None:
    sys.stderr.write(f"traceprof: {line}\n")
