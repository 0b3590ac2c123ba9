import pytest

from traceprof.errors import RecordingError
from traceprof.recording.captured import Captured
from traceprof.recording.job import Job
from traceprof.recording.outputs import write_export
from traceprof.recording.recorders.embedded import EmbeddedRecorder
from traceprof.recording.request import RecordRequest, RunRecorded


def test_an_export_that_cannot_be_read_is_said(tmp_path):
    export = tmp_path / "export.sqlite"
    export.write_text("no database at all, but long enough to be looked at")
    job = Job(
        request=RecordRequest(["train"], tmp_path / "run.sqlite"),
        recorder=EmbeddedRecorder(),
        run=RunRecorded(0, export),
        captured=Captured([], []),
        facts={},
        started_s=0,
        ended_s=1,
    )
    with pytest.raises(RecordingError, match=r"cannot be changed \(file is not a database\)"):
        write_export(job, export, [])
