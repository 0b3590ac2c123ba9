"""`scripts/mutate` finds operators, swaps one of them, and knows whether a test noticed."""

from __future__ import annotations

import textwrap
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from tests.requirements import ROOT

CODE = """
    LIMIT = 2 * 3

    def is_long(length, limit):
        return length > limit and limit is not None

    def label(name):
        return "kernel " + name
    """


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = SourceFileLoader("mutate", str(ROOT / "scripts" / "mutate"))
    spec = spec_from_loader("mutate", loader)
    assert spec is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "mutate", module)
    loader.exec_module(module)
    return module


def write_checkout(folder: Path, test: str) -> Path:
    for name, text in {
        "traceprof/__init__.py": "",
        "traceprof/rules/__init__.py": "",
        "traceprof/rules/lengths.py": textwrap.dedent(CODE),
        "tests/rules/test_lengths.py": test,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "traceprof" / "rules" / "lengths.py"


def test_operators_outside_functions_and_between_texts_are_not_swapped(
    mutate: ModuleType, tmp_path: Path
) -> None:
    file = write_checkout(tmp_path, "")
    found = {(site.line, site.old, site.new) for site in mutate.sites_in(file)}
    assert found == {(5, ">", ">="), (5, "and", "or"), (5, "is not", "is")}


def test_operators_in_brackets_in_chains_and_on_several_lines_are_swapped(
    mutate: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "sums.py"
    file.write_text(
        "def total(a, b, c):\n"
        '    """Sum up: Σ."""\n'
        "    if 0 <= a < b and (b - a) * c > 0 and c in (1, 2):\n"
        "        return (\n"
        "            a\n"
        "            + (b)\n"
        "        )\n"
        "    return sys.version_info >= (3, 12)\n"
    )
    sites = [(site.line, site.old) for site in mutate.sites_in(file)]
    in_condition = ["<=", "<", "and", "-", "*", ">", "and", "in"]
    assert sorted(sites) == sorted([*((3, old) for old in in_condition), (6, "+")])
    source = file.read_bytes()
    for site in mutate.sites_in(file):
        assert source[site.start :].decode().startswith(site.old)


def test_tests_of_a_room_begin_with_those_of_the_module(mutate: ModuleType, tmp_path: Path) -> None:
    file = write_checkout(tmp_path, "")
    tests = tmp_path / "tests" / "rules"
    (tests / "test_zeros.py").write_text("from traceprof.rules import lengths\n")
    (tests / "test_first.py").write_text("")
    names = [Path(name).name for name in mutate.tests_of(file, tmp_path)]
    assert names == ["test_lengths.py", "test_zeros.py", "test_first.py"]


def test_modules_without_a_folder_of_tests_have_the_tests_of_their_room(
    mutate: ModuleType, tmp_path: Path
) -> None:
    write_checkout(tmp_path, "")
    (tmp_path / "tests" / "test_units.py").write_text("")
    (tmp_path / "tests" / "test_api.py").write_text("")
    (tmp_path / "tests" / "rules" / "test_early.py").write_text("")
    (tmp_path / "tests" / "rules" / "test_waits.py").write_text("")

    def names(module: str) -> list[str]:
        file = tmp_path / "traceprof" / module
        return [Path(one).name for one in mutate.tests_of(file, tmp_path)]

    assert names("units.py") == ["test_units.py", "test_api.py"]
    assert names("api/__init__.py") == ["test_api.py", "test_units.py"]
    assert names("rules/waits/reading.py") == ["test_waits.py", "test_early.py", "test_lengths.py"]


@pytest.mark.parametrize(
    ("limit", "is_noticed"), [(3, True), (2, False)], ids=["at the limit", "beside it"]
)
def test_a_change_is_caught_by_a_test_that_looks_at_the_limit(
    mutate: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    limit: int,
    *,
    is_noticed: bool,
) -> None:
    test = (
        "from traceprof.rules.lengths import is_long\n\n"
        f"def test_length():\n    assert is_long(3, {limit}) is {limit == 2}\n"
    )
    file = write_checkout(tmp_path, test)
    before = file.read_text()
    site = next(site for site in mutate.sites_in(file) if site.old == ">")
    assert mutate.is_caught(site, tmp_path, 60) is is_noticed
    assert file.read_text() == before
    said = capsys.readouterr().out
    assert said.startswith("caught" if is_noticed else "SURVIVED")
    assert "traceprof/rules/lengths.py:5  > -> >=" in said


def test_tests_that_fail_without_a_change_are_an_error(mutate: ModuleType, tmp_path: Path) -> None:
    file = write_checkout(tmp_path, "def test_length():\n    assert False\n")
    with pytest.raises(SystemExit, match="fail without a change"):
        mutate.is_caught(next(mutate.sites_in(file)), tmp_path, 60)
