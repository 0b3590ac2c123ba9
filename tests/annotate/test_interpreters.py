"""The start-up file in the Pythons that a recorded program may start: it harms none of them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import ROOT

INJECTED = ROOT / "traceprof" / "annotate" / "inject"
# A program that a recording must not change: imports, a thread, output, an exit status.
PROGRAM = """
import sys, threading, json
thread = threading.Thread(target=json.dumps, args=([],))
thread.start()
thread.join()
sys.stdout.write("version %d.%d\\n" % sys.version_info[:2])
sys.exit(7)
"""


def interpreter(version):
    """Return the path of a Python of this version, or skip the test."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    candidates = [*map(str, installed), shutil.which(f"python{version}")]
    for candidate in filter(None, candidates):
        asked = [candidate, "-c", "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.stdout == version:
            return candidate
    pytest.skip(f"no Python {version} is installed here")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.12", "3.13"])
def test_a_program_in_another_python_runs_as_without_a_recording(tmp_path, version):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.stdout.write('hidden ran\\n')\n")
    environment = os.environ | {
        "TRACEPROF_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(INJECTED), str(tmp_path)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [interpreter(version), "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"hidden ran\nversion {version}\n", "")
    assert done.returncode == 7


@pytest.mark.parametrize(("version", "is_hooked"), [((3, 7), False), ((3, 8), True)])
def test_imports_are_not_touched_in_a_python_that_cannot_record(version, is_hooked):
    program = (
        f"import sys; sys.path.insert(0, {str(INJECTED)!r}); before = list(sys.meta_path)\n"
        f"real = sys.version_info; sys.version_info = {version}\n"
        f"exec(open({str(INJECTED / 'sitecustomize.py')!r}).read(), "
        f"{{'__file__': {str(INJECTED / 'sitecustomize.py')!r}, '__name__': 'sitecustomize'}})\n"
        "sys.version_info = real; print(sys.meta_path != before)"
    )
    environment = os.environ | {"TRACEPROF_DIR": os.devnull, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{is_hooked}\n"


def run_beside_torch(folder, torch, version, inject):
    """Run ``import torch`` where a file torch.py contains ``torch``; return what it printed."""
    (folder / "torch.py").write_text(torch)
    (folder / "train.py").write_text("import torch\nprint(torch.SCALE)\n")
    environment = os.environ | {
        "TRACEPROF_DIR": str(folder),
        "PYTHONPATH": str(INJECTED) if inject else "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [interpreter(version), "train.py"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
@pytest.mark.parametrize(
    "torch", ["raise ImportError('libcudart.so.12: cannot open')", "import absent", "1/0", "1 1"]
)
def test_a_torch_that_cannot_be_imported_fails_as_without_a_recording(tmp_path, torch, version):
    plain, recorded = (run_beside_torch(tmp_path, torch, version, on) for on in (False, True))
    assert plain.returncode == 1
    assert (recorded.returncode, recorded.stdout) == (plain.returncode, plain.stdout)
    assert recorded.stderr == plain.stderr


def test_a_module_of_the_program_with_the_name_torch_is_named(tmp_path):
    done = run_beside_torch(tmp_path, "SCALE = 5\n", "3.11", inject=True)
    assert (done.returncode, done.stdout) == (0, "5\n")
    assert re.fullmatch(
        r"traceprof: process \d+ imported \S*torch\.py, which is not PyTorch\n", done.stderr
    )
