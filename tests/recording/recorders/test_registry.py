import pkgutil
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.recording.conftest import ENVIRONMENT, NAMED_STEPS
from traceprof.cli import app
from traceprof.errors import RecordingError, UsageError
from traceprof.formats import open_trace
from traceprof.recording import RecordRequest, recorders
from traceprof.recording.program import child_environment, run_recorded
from traceprof.recording.recorders import RECORDERS, choose_recorder
from traceprof.recording.request import Recorder, RunRecorded
from traceprof.recording.trial import chosen_recorder


def _run(request: RecordRequest, folder: Path) -> RunRecorded:
    code = run_recorded(request.command, child_environment(folder, request))
    return RunRecorded(code, notes=("the fake was here",))


def test_a_recorder_is_one_module_and_a_line(monkeypatch, tmp_path):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(recorders, "RECORDERS", (*RECORDERS, Recorder("fake", _run)))
    path = tmp_path / "run.sqlite"
    options = ["--with", "fake", "-o", str(path), "--", *NAMED_STEPS, "3"]
    done = CliRunner().invoke(app, ["record", *options])
    assert done.exit_code == 3
    assert "the fake was here" in done.stderr
    assert f"with fake: {path}" in done.stderr
    assert (open_trace(path).ranges.to_frame()["name"] == "work").sum() == 3


def test_every_module_with_a_recorder_is_registered():
    modules = [
        import_module(module.name)
        for module in pkgutil.walk_packages(recorders.__path__, "traceprof.recording.recorders.")
    ]
    found = {id(module.RECORDER) for module in modules if hasattr(module, "RECORDER")}
    assert found == {id(recorder) for recorder in RECORDERS}


def test_recorders_are_chosen_by_name(monkeypatch, tmp_path):
    assert [choose_recorder(r.name).name for r in RECORDERS if r.missing() is None]
    with pytest.raises(UsageError, match="choose auto, "):
        choose_recorder("magic")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecordingError, match="nsys is not on PATH"):
        choose_recorder("nsys")
    request = RecordRequest(["true"], tmp_path / "x.sqlite")
    assert chosen_recorder(request)[0].name == "torch"
