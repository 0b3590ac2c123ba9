import pytest

from traceprof.errors import RecordingError
from traceprof.recording.captured import Captured
from traceprof.recording.job import Job
from traceprof.recording.outputs import write_export
from traceprof.recording.request import RecordRequest, RunRecorded
from traceprof.recording.work_folder import notes_of


def test_an_export_that_cannot_be_read_is_said(tmp_path):
    export = tmp_path / "export.sqlite"
    export.write_text("no database at all, but long enough to be looked at")
    request = RecordRequest(["train"], tmp_path / "run.sqlite")
    notes = notes_of(request, "torch", {})
    job = Job(request, RunRecorded(0, export), Captured([], []), notes)
    with pytest.raises(RecordingError, match=r"cannot be changed \(file is not a database\)"):
        write_export(job, export, [])
