"""A recorder is taken where a trial proves it; what it loses is said, and the next one is taken."""

import sys

import pytest

from traceprof.recording import RecordRequest, doctor, recorders, trial
from traceprof.recording.recorders import cupti, embedded


@pytest.fixture
def trials(libraries, monkeypatch):
    """Return a function that chooses a recorder as `record` does, and gives what is said."""
    monkeypatch.setattr(recorders, "RECORDERS", (cupti.RECORDER, embedded.RECORDER))
    monkeypatch.setattr(doctor, "_python", lambda: sys.executable)
    for module in (cupti, trial):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
    monkeypatch.setattr(cupti, "LIBRARY", libraries.recorder)
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", libraries.environment["LD_LIBRARY_PATH"])

    def choose(name="auto", **environment):
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        said = []
        asked = RecordRequest(
            [sys.executable, "-c", ""], "x.sqlite", recorder=name, say=said.append
        )
        recorder, request = trial.chosen_recorder(asked)
        return recorder.name, request.profiler_arguments.get("cupti", ()), "\n".join(said)

    return choose


def test_a_recorder_that_keeps_everything_is_the_first_choice(trials):
    assert trials() == ("cupti", (), "")
    check = doctor.CHECKS["cupti"]()
    assert check.is_ok
    assert check.found == (
        "a test recording captured everything: 200 kernels, 60 copies, 40 memsets, "
        "3932160 bytes copied"
    )


def test_a_recorder_that_loses_work_is_not_taken(trials):
    name, _, said = trials(STANDIN_LOSE="100")
    assert name == "torch"
    lost = "recorded only 2 of 200 kernels of a test program"
    assert said == f"traceprof does not record with cupti: {lost}"
    check = doctor.CHECKS["cupti"]()
    assert (check.is_ok, check.found) == (False, lost)


def test_where_chosen_calls_do_not_come_all_of_the_runtime_are_recorded(trials):
    assert trials(STANDIN_NO_CALLS="1") == ("cupti", ("calls=runtime",), "")
    assert doctor.CHECKS["cupti"]().found.startswith("a test recording with calls=runtime ")


def test_a_cupti_that_cannot_choose_calls_is_taken(trials):
    assert trials(STANDIN_VERSION="18") == ("cupti", (), "")


def test_who_holds_cupti_is_the_reason(trials):
    name, _, said = trials(STANDIN_BUSY="1")
    assert name == "torch"
    assert "CUPTI is in use by CUPTI for the monitor" in said


def test_a_recorder_that_was_asked_for_is_taken_and_its_trial_said(trials):
    name, _, said = trials("cupti", STANDIN_LOSE="2")
    assert name == "cupti"
    assert (
        said
        == "a test recording with cupti failed: recorded only 100 of 200 kernels of a test program"
    )


def test_the_python_of_the_command_is_found(tmp_path):
    assert trial.python_of([sys.executable, "train.py"]) == sys.executable
    (tmp_path / "python").touch()
    launcher = tmp_path / "torchrun"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    assert trial.python_of([str(launcher)]) == str(tmp_path / "python")
    assert trial.python_of(["no-such-program"]) == sys.executable
