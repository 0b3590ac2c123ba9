"""What pages and messages advise about recording is done here, with the tools at hand."""

import ast
import re
import shlex
import shutil
import subprocess
from functools import cache

import pytest

from tests.recording.conftest import DDP, end_what_is_left, record
from tests.requirements import ROOT, require

PACKAGE = ROOT / "traceprof"
OPTION = r"--[a-z][\w-]*(?:=[\w-]+(?:,[\w-]+)*)?"
# Behind "nsys ", "nsys profile ", "nsys: " and "--nsys-arg=", one or more of them.
FOR_NSYS = re.compile(rf"(?:\bnsys(?: profile)?:? |--nsys-arg=)({OPTION}(?:,? {OPTION})*)")
VARIABLE = re.compile(r"\b([A-Z]{3,}_[A-Z_]+=[\w:]*\w)")
COMMAND = re.compile(r"`traceprof record( [^`]*)?`")


@cache
def texts():
    """Every text in the package that a user may read, and the pages of docs."""
    told = (PACKAGE / "model" / "recording.toml", PACKAGE / "formats" / "unread.toml")
    pages = (*ROOT.glob("docs/*.md"), ROOT / "README.md", *told)
    found = [path.read_text("utf-8") for path in pages]
    for path in sorted(PACKAGE.rglob("*.py")):
        if "recorders/nsys" not in str(path):  # what it passes on by itself is tested there
            tree = ast.parse(path.read_text("utf-8"))
            nodes = list(ast.walk(tree))
            unseen = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
            constants = [one for one in nodes if isinstance(one, ast.Constant)]
            found += [
                one.value
                for one in constants
                if isinstance(one.value, str) and id(one) not in unseen
            ]
    return found


def advised(pattern):
    return sorted({match for text in texts() for match in pattern.findall(text)})


def options_for_nsys():
    return sorted({one for text in advised(FOR_NSYS) for one in re.findall(OPTION, text)})


def help_of(nsys):
    done = subprocess.run([nsys, "profile", "--help"], capture_output=True, text=True, check=False)
    return done.stdout


def rounds(nsys):
    """Yield the options for nsys with a value, in as few commands as there are of one name.

    Options that only newer versions have are left out.
    """
    by_name, known = {}, help_of(nsys)
    for option in options_for_nsys():
        if "=" in option and option.partition("=")[0] in known:
            by_name.setdefault(option.partition("=")[0], []).append(option)
    for place in range(max(map(len, by_name.values()))):
        yield [own[place] for own in by_name.values() if place < len(own)]


def test_advice_is_found():
    assert {"--cuda-graph-trace=node", "--sample=process-tree"} <= set(options_for_nsys())
    assert "TRACEPROF_DISABLE=collectives" in advised(VARIABLE)


@pytest.mark.nsys
def test_what_is_advised_for_nsys_is_taken_by_the_one_at_hand(tmp_path):
    """It looks at all that it is given before it asks its agent for a program that is not there.

    On a busy machine the agent may be gone before it has answered, or stay behind.
    """
    nsys, nowhere = require("nsys"), str(tmp_path / "no-such-program")
    for options in rounds(nsys):
        command = [nsys, "profile", *options, nowhere]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).strip()
        assert said in (f"No such file or directory: {nowhere}", "End of file")
    end_what_is_left(tmp_path)
    done = subprocess.run(
        [nsys, "profile", "--trace=nothing", nowhere], capture_output=True, text=True, check=False
    )
    assert "Illegal --trace argument 'nothing'" in done.stdout + done.stderr


@pytest.mark.newer_nsys
def test_options_for_nsys_are_known_to_this_one_or_to_a_newer_one():
    nsys, newer = require("nsys"), shutil.which("nsys", path=require("newer_nsys"))
    known = help_of(nsys) + help_of(newer)
    for option in options_for_nsys():
        assert option.partition("=")[0].removesuffix("s") in known, option


@pytest.mark.nsys
def test_options_for_nsys_without_a_value_are_known_to_it_or_were_under_another_name():
    nsys = require("nsys")
    said = subprocess.run([nsys, "profile", "--help"], capture_output=True, text=True, check=False)
    for option in options_for_nsys():
        if "=" not in option:
            assert option.removesuffix("s") in said.stdout, option


@pytest.mark.torch
def test_variables_that_are_advised_harm_no_recording_and_do_what_is_said(tmp_path):
    require("torch")
    given = dict(one.split("=", 1) for one in advised(VARIABLE) if "CACHE" not in one)
    given["TRACEPROF_DISABLE"] = "collectives"
    recorded = record(tmp_path / "run.sqlite", DDP, "--with", "torch", **given)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert recorded.trace.collectives.empty
    assert (recorded.trace.ranges["name"] == "backward").any()


@pytest.mark.parametrize("arguments", sorted({*advised(COMMAND)}))
def test_commands_that_are_advised_are_commands(tmp_path, arguments):
    options = shlex.split(arguments.partition(" -- ")[0])
    if "nsys" in options:
        require("nsys")
    if not any(word.isupper() for word in options):  # "-o FOLDER/"
        done = record(tmp_path / "run.sqlite", ["true"], *options).done
        reasons = ("this machine has no GPU", "no NVIDIA driver is loaded", "is not compiled")
        needs_gpu = done.returncode in (2, 5) and any(one in done.stderr for one in reasons)
        assert done.returncode == 0 or needs_gpu, (arguments, done.stderr)
