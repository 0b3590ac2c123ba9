"""Launchers of MPI that say what the real ones say."""

import os
import subprocess

import pytest

from tests.recording.conftest import NAMED_STEPS, record
from tests.requirements import require
from traceprof.formats.runs.files import open_run
from traceprof.recording.machine import mpi_facts

HYDRA = """HYDRA build details:
    Version:                                 {}
    Release Date:                            Wed Jun  7 15:22:45 CDT 2023
    CC:                              gcc
    Process Manager:                         pmi
"""
# launcher, what it says, what mpichversion beside it says, expected
REAL = [
    (  # Debian 12
        "mpirun",
        "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n",
        None,
        "Open MPI 4.1.4",
    ),
    ("mpiexec", "mpiexec (OpenRTE) 4.0.3\n\nReport bugs to …\n", None, "Open MPI 4.0.3"),
    (
        "mpirun",
        "Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619 (id: c2e19c2f3e)\n"
        "Copyright 2003-2023, Intel Corporation.\n",
        None,
        "Intel MPI 2021.10",
    ),
    (
        "mpirun",
        "Intel(R) MPI Library for Linux* OS, Version 2019 Update 2 Build 20190123 (id: e2d820d49)\n"
        "Copyright 2003-2019, Intel Corporation.\n",
        None,
        "Intel MPI 2019 Update 2",
    ),
    (  # Debian 12
        "mpiexec",
        HYDRA.format("4.0.2"),
        "MPICH Version:    \t4.0.2\nMPICH Release date:\tThu Apr  7 12:34:45 CDT 2022\n"
        "MPICH Device:    \tch4:ucx\n",
        "MPICH 4.0.2",
    ),
    (
        "mpirun",
        HYDRA.format("3.2.1"),
        "MVAPICH2 Version:       2.3.7\nMVAPICH2 Release date:  Wed March 02 22:00:00 EST 2022\n"
        "MVAPICH2 Device:        ch3:mrail\n",
        "MVAPICH 2.3.7",
    ),
    ("mpirun", HYDRA.format("4.1.2"), None, "MPICH or a relative 4.1.2"),
    ("mpirun", "something new 1.0\n", None, ""),
]


def write_program(path, text):
    path.write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")  # nothing else need be on PATH
    path.chmod(0o755)


@pytest.mark.parametrize(("launcher", "said", "version", "expected"), REAL)
def test_name_and_version_are_the_launchers_own(
    tmp_path, monkeypatch, launcher, said, version, expected
):
    write_program(tmp_path / launcher, said)
    if version is not None:
        write_program(tmp_path / "mpichversion", version)
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = mpi_facts(["python", "train.py"])
    assert facts == {"mpi": expected, "mpi.launcher": str(tmp_path / launcher)}


def test_the_launcher_in_the_command_wins_over_the_path(tmp_path, monkeypatch):
    for folder, version in (("mine", "5.0.7"), ("other", "4.1.4")):
        (tmp_path / folder).mkdir()
        write_program(tmp_path / folder / "mpirun", f"mpirun (Open MPI) {version}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/other")
    command = [f"{tmp_path}/mine/mpirun", "-n", "2", "python", "train.py"]
    assert mpi_facts(command)["mpi"] == "Open MPI 5.0.7"
    assert mpi_facts(["python", "mpirun"])["mpi"] == "Open MPI 4.1.4"


def test_without_a_launcher_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mpi_facts(["python", "train.py"]) == {}


def test_a_launcher_that_fails_leaves_its_place_only(tmp_path, monkeypatch):
    (tmp_path / "mpirun").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mpi_facts()["mpi"] == ""


def test_the_real_one_if_there_is_one():
    require("mpirun")
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    version = mpi_facts()["mpi"].rpartition(" ")[2]
    assert version
    assert version in said.stdout


def test_the_ranks_of_mpirun_are_told_apart(tmp_path):
    launcher = [require("mpirun"), "-n", "2", "--oversubscribe"]
    if os.geteuid() == 0:
        launcher.append("--allow-run-as-root")
    folder = f"{tmp_path}/run/"
    recorded = record(tmp_path, [*launcher, *NAMED_STEPS, "0"], "-o", folder, "--with", "torch")
    assert recorded.done.returncode == 0, recorded.done.stderr
    run = open_run([tmp_path / "run"])
    assert [member.rank for member in run] == [0, 1]
    for member in run:
        assert (member.trace.ranges.to_frame()["name"] == "work").sum() == 3
        facts = dict(
            zip(
                member.trace.environment.to_frame()["name"],
                member.trace.environment.to_frame()["value"],
                strict=True,
            )
        )
        assert facts["mpi"].startswith("Open MPI")
