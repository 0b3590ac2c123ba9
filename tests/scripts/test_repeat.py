"""scripts/repeat: how often each test passed, beside a load."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from tests.requirements import ROOT

TESTS = """
from pathlib import Path
import pytest

def test_that_passes(): pass

def test_that_fails_once():
    seen = Path(__file__).with_name("seen")
    had = seen.exists()
    seen.touch()
    assert had, "not seen before"

@pytest.mark.skip
def test_that_skips(): pass
"""


@pytest.fixture
def repeat(monkeypatch):
    loader = SourceFileLoader("repeat", str(ROOT / "scripts" / "repeat"))
    module = module_from_spec(spec_from_loader("repeat", loader))
    loader.exec_module(module)
    monkeypatch.setattr(module, "PYTHON", sys.executable)
    return module


def test_each_test_is_counted_and_what_failed_is_kept(repeat, tmp_path, monkeypatch, capsys):
    (tmp_path / "test_three.py").write_text(TESTS)
    monkeypatch.setattr(repeat.tempfile, "tempdir", str(tmp_path))
    arguments = ["repeat", "--times", "2", "--load", "0", "-p", "no:randomly", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        repeat.main()
    assert ended.value.code == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    counts = {row[-1].partition("::")[2]: row[:-1] for row in rows if len(row) == 4}
    assert counts["test_that_passes"] == ["2", "0", "0"]
    assert counts["test_that_fails_once"] == ["1", "1", "0"]
    assert counts["test_that_skips"] == ["0", "0", "2"]
    (kept,) = tmp_path.glob("repeat-*/*.txt")
    assert kept.name == "0.txt"
    assert "not seen before" in kept.read_text()


def test_a_load_is_there_until_it_is_no_longer_needed(repeat, monkeypatch):
    started, start = [], subprocess.Popen

    def popen(command, **_options):
        started.append(start(command))
        return started[-1]

    monkeypatch.setattr(repeat.subprocess, "Popen", popen)
    with repeat.load(2):
        assert [one.poll() for one in started] == [None, None]
    assert [one.returncode for one in started] == [-9, -9]
