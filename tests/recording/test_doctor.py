import json
import os
import sys
from pathlib import Path

import pytest

from tests.requirements import require


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
        "found": "ranges reach nsys",
        "advice": "",
    }


def test_what_is_missing_comes_with_the_command_that_installs_it(run_traceprof, tmp_path):
    done, checks = run(run_traceprof, "--json", PATH=str(tmp_path))
    assert not checks["nsys"]["is_ok"]
    assert "nsight-systems" in checks["nsys"]["advice"]
    assert not checks["nvprof"]["is_ok"]
    assert checks["nvtx"]["found"] == "not tried: there is no nsys"
    assert done.returncode == (0 if checks["torch"]["is_ok"] else 5)


def test_scripts_can_require_things(run_traceprof, tmp_path):
    done = run_traceprof("doctor", "--require", "nsys", PATH=str(tmp_path))
    assert done.returncode == 5
    assert done.stderr == "traceprof: missing here: nsys\n"
    assert "--  nsys" in done.stdout
    done = run_traceprof("doctor", "--require", "magic", PATH=str(tmp_path))
    assert done.returncode == 2
    assert "choose from torch" in done.stderr
