import errno
import tempfile
from pathlib import Path

import pytest

from tests.recording.conftest import record
from traceprof.recording import work_folder
from traceprof.recording.finishing import _note_on_collectives
from traceprof.recording.request import RecordRequest
from traceprof.recording.spool import ProcessEvents

MS = 1_000_000


def events(n_calls, every_ns):
    last_ns = (n_calls - 1) * every_ns + 1
    return ProcessEvents(7, Path(), n_collectives=n_calls, first_ns=0, last_ns=last_ns)


@pytest.mark.parametrize(
    ("n_calls", "every_ns", "share"),
    # 45 µs of each millisecond; few calls; calls that are far apart
    [(1001, 1 * MS, "5%"), (99, 1 * MS, None), (1001, 2 * MS, None)],
)
def test_collectives_that_are_costly_to_record_are_said(n_calls, every_ns, share):
    note = _note_on_collectives(events(n_calls, every_ns))
    if share is None:
        assert note is None
    else:
        assert f"recording {n_calls} collective calls took about {share}" in str(note)
        assert "TRACEPROF_DISABLE=collectives" in str(note)


@pytest.mark.parametrize("option", ["--nsys-arg=--stats=true", "--nvprof-arg=-s", "--gpu-metrics"])
def test_options_of_another_recorder_are_refused_before_anything_runs(tmp_path, option):
    recorded = record(tmp_path / "run.sqlite", ["touch", "ran"], "--with", "torch", option)
    assert recorded.done.returncode == 2
    assert f"{option.partition('=')[0]} is an option of n" in recorded.done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_work_folder_in_which_nothing_can_be_written_is_no_more(tmp_path, monkeypatch):
    def full(folder, notes):
        (folder / "begun").touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(work_folder, "write_notes", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    request = RecordRequest(command=("true",), output=tmp_path / "t.sqlite")
    with (
        pytest.raises(OSError, match="No space"),
        work_folder.new_work_folder(work_folder.notes_of(request, "torch", {})),
    ):
        pytest.fail("nothing can be recorded")
    assert not list(tmp_path.iterdir())
