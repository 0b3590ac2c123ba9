"""Fixtures that many tests share."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.forking import IS_POSSIBLE, READ_ONCE, run_forked
from tests.render.browser import chromium
from tests.requirements import NOT_QUICK, NSYS, ROOT, TRACES, nsys_in_turn, require
from traceprof import processes
from traceprof.cache import identity

# No deadline: a busy machine is not a bug. Fewer examples than usual: most build tables.
# CI judges a change, by the same examples each time; new ones are tried wherever people test.
_IS_QUICK = "TRACEPROF_QUICK" in os.environ
settings.register_profile(
    "traceprof",
    deadline=None,
    max_examples=15 if _IS_QUICK else 60,
    derandomize="TRACEPROF_REQUIRE" in os.environ,
)
settings.load_profile("traceprof")

# Started in the background by a script, or by nohup, we would hand on to every program that
# Ctrl-C, or a lost connection, is ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


Run = Callable[..., "subprocess.CompletedProcess[str]"]

_TIMEOUT_S = 300.0

_SHARING = ("tests/docs/", "tests/truth/", "tests/trying/", "tests/workers/")

_LEFT_OUT = "not among the quick tests: scripts/test --all"


_MAX_QUICK_CASES = 3
_LEFT_OUT_CASES = "further cases of a test, not among the quick tests: scripts/test --all"
_N_LEFT_OUT = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `scripts/test` does not run by itself, and share the rest among workers."""
    if _IS_QUICK:
        chosen = some_cases(items)
        config.stash[_N_LEFT_OUT] = len(items) - len(chosen)
        items[:] = chosen
        for item in items:
            if _has_one_of(item, NOT_QUICK):
                item.add_marker(pytest.mark.skip(reason=_LEFT_OUT))
    share_among_workers(items)


def some_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return of each test at most the first, the middle, and the last case."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = {
        id(some[place])
        for some in cases.values()
        for place in ((0, len(some) // 2, -1) if len(some) > _MAX_QUICK_CASES else range(len(some)))
    }
    return [item for item in items if id(item) in chosen]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a worker of pytest-xdist report how many cases were left out: all left out the same."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["n_left_out"] = session.config.stash.get(_N_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_N_LEFT_OUT] = getattr(node, "workeroutput", {}).get("n_left_out", 0)


def share_among_workers(items: list[pytest.Item]) -> None:
    """Let a worker take a file at a time, so that what its tests share is made once.

    All files that start nsys, which is never started twice at a time, are one worker's, or the
    other would wait for it; so are those of a folder that share what takes long to make. What takes
    long begins first, several files that are one worker's before all others: at the end no worker
    waits for another.
    """
    with_nsys = {item.path for item in items if _has_one_of(item, NSYS)}
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            name = item.nodeid.partition("::")[0]
            name = next((folder for folder in _SHARING if name.startswith(folder)), name)
            name = "nsys" if item.path in with_nsys else name
            item.add_marker(pytest.mark.xdist_group(name))
    long = {_group_of(item) for item in items if _has_one_of(item, NOT_QUICK)}
    files = {item.nodeid.partition("::")[0] for item in items}

    def place(item: pytest.Item) -> tuple[bool, ...]:
        group = _group_of(item)
        return group != "nsys", group in files, group not in long

    items.sort(key=place)


def _group_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    assert mark is not None
    return str(mark.args[0])


def _has_one_of(item: pytest.Item, marks: Collection[str]) -> bool:
    return any(mark.name in marks for mark in item.iter_markers())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Sum up by reason what was skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    reasons += Counter({_LEFT_OUT_CASES: config.stash.get(_N_LEFT_OUT, 0)})
    if reasons:
        terminalreporter.section("skipped, and why")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:6} {reason}")


@pytest.fixture
def run_traceprof(tmp_path: Path) -> Run:
    """Return a function that runs the command line as a user would."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **environment}
        if IS_POSSIBLE and not environment.keys() & READ_ONCE:
            done = run_forked(words, tmp_path, env, _TIMEOUT_S)
            assert done is not None, f"not done after {_TIMEOUT_S:g} s: {words}"
            return done
        return subprocess.run(
            [sys.executable, "-m", "traceprof", *words],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_TIMEOUT_S,
            cwd=tmp_path,
            env=env,
            check=False,
        )

    return run


@pytest.fixture
def times_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `os.utime` say when a file was changed: the system's own time of that cannot be set."""
    monkeypatch.setattr(identity, "changed_ns", lambda told: told.st_mtime_ns)


@pytest.fixture(autouse=True)
def no_runs_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Let no test see or change the runs, or the cache, of whoever runs it."""
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("TRACEPROF_RUNS", str(folder / "no-such-folder" / "runs.db"))
    monkeypatch.setenv("TRACEPROF_CACHE", "0")


@pytest.fixture(autouse=True)
def memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that run in the process of the tests leave its allocator alone."""
    monkeypatch.setattr(processes, "keep_freed_memory", lambda: None)


@pytest.fixture(autouse=True)
def only_one_nsys(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let tests of all workers start nsys in turn: two starts at a time can break its registry."""
    if not _has_one_of(request.node, NSYS):
        yield
        return
    with nsys_in_turn():
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return the headless browser that all tests of a process share."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def real_trace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives a copy of a real trace, unpacked where it is gzipped."""
    folder = tmp_path_factory.mktemp("traces")

    def copy(name: str) -> Path:
        require("traces")
        source = TRACES / name
        # Ranks of different runs bear the same names.
        target = folder / source.parent.name / source.name.removesuffix(".gz")
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            opener = gzip.open if source.suffix == ".gz" else open
            with opener(source, "rb") as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        return target

    return copy
