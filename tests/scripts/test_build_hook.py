"""scripts/build_hook.py: C is compiled where that is possible, missed nowhere else."""

import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.requirements import ROOT, require


@pytest.fixture
def hook(monkeypatch):
    """The module, with a stand-in for hatchling, which only environments of builds have."""
    name = "hatchling.builders.hooks.plugin.interface"
    interface = ModuleType(name)
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, name, interface)
    loader = SourceFileLoader("build_hook", str(ROOT / "scripts" / "build_hook.py"))
    module = module_from_spec(spec_from_loader("build_hook", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def checkout(hook, tmp_path):
    for library in hook.LIBRARIES:
        (tmp_path / library).parent.mkdir(parents=True)
        for source in (ROOT / library).parent.glob("*.[ch]"):
            shutil.copy(source, (tmp_path / library).parent)
    return tmp_path


def built(hook, checkout: Path):
    """Return what the hook says of a wheel, and what it warns of."""
    warnings: list[str] = []
    one = hook.CompiledLibraries()
    one.target_name, one.root = "wheel", str(checkout)
    one.app = SimpleNamespace(display_warning=warnings.append)
    data = {"artifacts": [], "pure_python": True}
    one.initialize("standard", data)
    return data, warnings


def test_a_wheel_of_a_platform_has_the_libraries(hook, checkout, monkeypatch):
    require("compiled")
    monkeypatch.delenv("TRACEPROF_COMPILED", raising=False)
    data, warnings = built(hook, checkout)
    assert data["artifacts"] == [library.as_posix() for library in hook.LIBRARIES]
    assert data["tag"].startswith("py3-none-")
    assert not warnings
    for library in hook.LIBRARIES:
        made = [
            one for one in (checkout / library).parent.iterdir() if one.suffix not in (".c", ".h")
        ]
        assert [one.name for one in made] == [library.name]


def test_without_a_compiler_the_wheel_is_python_alone(hook, checkout, monkeypatch):
    monkeypatch.delenv("TRACEPROF_COMPILED", raising=False)
    monkeypatch.setenv("CC", "false")
    data, warnings = built(hook, checkout)
    assert data == {"artifacts": [], "pure_python": True}
    assert len(warnings) == 1
    assert not list(checkout.rglob("*.library"))


def test_a_failure_is_an_error_where_it_is_wanted(hook, checkout, monkeypatch):
    monkeypatch.setenv("TRACEPROF_COMPILED", "1")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(subprocess.CalledProcessError):
        built(hook, checkout)


def test_it_can_be_left_out(hook, checkout, monkeypatch):
    monkeypatch.setenv("TRACEPROF_COMPILED", "0")
    assert built(hook, checkout) == ({"artifacts": [], "pure_python": True}, [])
