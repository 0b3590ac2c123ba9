import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.recording.sampling.fake_nvml import FakeLibrary
from tests.requirements import require
from traceprof.recording import doctor
from traceprof.recording.doctor import CHECKS


def python_in(folder, said):
    """Make a Python that only says which torch it has: the real one takes seconds to import it."""
    (folder / "python").write_text(f"#!/bin/sh\necho '{said}'\n")
    (folder / "python").chmod(0o755)


def run(run_traceprof, *arguments, **environment):
    done = run_traceprof("doctor", *arguments, **environment)
    return done, {
        check["name"]: check for check in json.loads(done.stdout or "{}").get("checks", ())
    }


@pytest.mark.nsys
@pytest.mark.torch
def test_what_is_here_is_found_and_tried(run_traceprof):
    require("nsys")
    require("torch")
    python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done, checks = run(run_traceprof, "--json", PATH=python)
    assert done.returncode == 0, done.stderr
    assert checks["nsys"]["is_ok"]
    assert checks["torch"]["is_ok"]
    assert checks["nvtx"] == {
        "name": "nvtx",
        "is_ok": True,
        "found": checks["nvtx"]["found"],
        "advice": "",
    }
    assert checks["nvtx"]["found"].startswith("nsys records ranges")


@pytest.mark.parametrize(
    ("trials", "is_ok", "found"),
    [
        ([(20, "")], True, "nsys records ranges"),
        ([(0, ""), (0, "Agent launcher failed."), (20, "")], True,
         "nsys records ranges (in 1 of 3 test recordings)"),
        ([(0, "")] * 3, False, "nsys does not record ranges"),
        ([(0, ""), (0, ""), (17, "")], False, "nsys recorded only 17 of 20 ranges"),
        ([(0, "")] * 2 + [(0, "Agent launcher failed.")], False,
         "a test recording failed: Agent launcher failed."),
    ],
)  # fmt: skip
def test_a_trial_that_fails_is_tried_again(monkeypatch, trials, is_ok, found):
    made = iter(trials)
    monkeypatch.setattr(doctor, "NSYS", replace(doctor.NSYS, missing=lambda: None))
    monkeypatch.setattr(doctor, "_count_recorded_ranges", lambda: next(made))
    check = CHECKS["nvtx"]()
    assert (check.is_ok, check.found) == (is_ok, found)
    assert list(made) == []


def test_an_nsys_that_starts_nothing_is_not_taken_for_one_that_loses_ranges(
    run_traceprof, tmp_path
):
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\ncase "$*" in *--help) echo "  --output=";; '
        '*) echo "Agent launcher failed."; exit 1;; esac\n'
    )
    program.chmod(0o755)
    python_in(program.parent, "2.5.0 CPU only")
    _, checks = run(run_traceprof, "--json", PATH=f"{program.parent}:{os.environ['PATH']}")
    assert not checks["nvtx"]["is_ok"]
    assert "nsys did not start the program (Agent launcher failed." in checks["nvtx"]["found"]


def test_an_nsys_that_loses_work_is_not_ok(monkeypatch, tmp_path):
    """One that is older than the driver does so without a word."""
    (tmp_path / "nsys").write_text("#!/bin/sh\necho 'NVIDIA Nsight Systems version 2023.4.4.54'\n")
    (tmp_path / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(doctor, "find_importer", lambda _nsys: "there")
    monkeypatch.setattr(doctor, "has_gpu", lambda: True)
    lost = "recorded only 2 of 200 kernels of a test program"
    monkeypatch.setattr(doctor, "trial_failure", lambda _recorder, _python: lost)
    check = CHECKS["nsys"]()
    assert not check.is_ok
    assert check.found == f"nsys 2023.4.4.54 ({tmp_path}/nsys): {lost}"
    assert "as new as the driver" in check.advice


def test_what_is_missing_comes_with_the_command_that_installs_it(run_traceprof, tmp_path):
    python_in(tmp_path, "")
    done, checks = run(run_traceprof, "--json", PATH=str(tmp_path))
    assert not checks["nsys"]["is_ok"]
    assert "nsight-systems" in checks["nsys"]["advice"]
    assert not checks["nvprof"]["is_ok"]
    assert checks["nvtx"]["found"] == "not tested because nsys is not installed"
    assert "cannot import torch" in checks["torch"]["found"]
    assert done.returncode == 5


def test_what_the_samplers_would_find_is_named(monkeypatch, tmp_path):
    nvml = pytest.importorskip("pynvml")
    pytest.importorskip("psutil")
    monkeypatch.setattr(nvml, "nvmlLib", FakeLibrary(unsupported={"nvmlDeviceGetPowerUsage"}))
    monkeypatch.setattr(nvml, "_nvmlGetFunctionPointer_cache", {})
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = {name: CHECKS[name]() for name in ("gpu", "nvidia-ml-py", "mpi", "psutil")}
    assert all(check.is_ok for check in checks.values())
    assert checks["gpu"].found == "NVIDIA A100-SXM4-80GB; driver 570.86.15"
    assert "throttled_by_heat, throttled_by_power" in checks["nvidia-ml-py"].found
    assert "power_watts" not in checks["nvidia-ml-py"].found
    assert checks["mpi"].found == f"Open MPI 4.1.4 ({tmp_path}/mpirun)"


def test_a_torch_that_is_too_old_is_named(monkeypatch, tmp_path):
    python_in(tmp_path, "1.13.1 CPU only")
    monkeypatch.setenv("PATH", str(tmp_path))
    check = CHECKS["torch"]()
    assert not check.is_ok
    assert "too old" in check.found


def test_scripts_can_require_things(run_traceprof, tmp_path):
    python_in(tmp_path, "2.5.0 CPU only")
    done = run_traceprof("doctor", "--require", "nsys", PATH=str(tmp_path))
    assert done.returncode == 5
    assert done.stderr == "traceprof: not available on this machine: nsys\n"
    assert "--  nsys" in done.stdout
    done = run_traceprof("doctor", "--require", "magic", PATH=str(tmp_path))
    assert done.returncode == 2
    assert "use torch" in done.stderr
