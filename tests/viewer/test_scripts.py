"""The viewer's own JavaScript, read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.requirements import ROOT, require
from traceprof.render.timeline.render import read_asset
from traceprof.viewer.tables import DEFAULT_TABLES

MODULES = ROOT / "traceprof" / "viewer" / "modules"
SCRIPTS = [*sorted(MODULES.glob("*.mjs")), ROOT / "traceprof" / "viewer" / "assets" / "viewer.js"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_turns_text_into_code_or_leaves_the_machine(path: Path) -> None:
    source = path.read_text("utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", source)
    assert not re.search(r"new Function|WebSocket|sendBeacon|https?://", source)
    assert len(source.splitlines()) <= 260
    assert max(map(len, source.splitlines())) <= 130


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_is_valid(path: Path) -> None:
    done = subprocess.run([require("node"), "--check", path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    "path",
    [path for path in SCRIPTS[:-1] if path.name != "running.mjs"],  # imports nothing
    ids=lambda path: path.name,
)
def test_imports_name_what_the_other_module_exports(path: Path) -> None:
    own = {module.name: module.read_text("utf-8") for module in MODULES.glob("*.mjs")}
    found = re.findall(r'^import \{([^}]*)\} from "\./([a-z_]+\.mjs)"', own[path.name], re.M)
    assert found
    for names, source in found:
        text = own.get(source) or read_asset(source)
        exported = re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", text, re.M)
        assert {name.strip() for name in names.split(",")} <= set(exported)


def test_browser_and_server_agree_on_the_first_tables() -> None:
    found = re.search(r"const DEFAULT = \[(.*?)\];", SCRIPTS[-1].read_text("utf-8"))
    assert found
    assert tuple(re.findall(r'"(\w+)"', found[1])) == DEFAULT_TABLES
