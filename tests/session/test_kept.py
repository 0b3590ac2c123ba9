"""Answers that were kept are those of a full read, and are given only for the same files."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pandas.testing import assert_frame_equal

from tests import real_traces
from tests.formats.kineto_file import kernel, write
from tests.measures.generated_run import Plan, make_run
from traceprof import formats
from traceprof.cache.entries import Cache
from traceprof.comparison.runs_named import summary_of
from traceprof.errors import NotRecordedError, TraceprofError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures import ANALYSES, analyses
from traceprof.model.names import Names, _shared
from traceprof.model.trace import Trace
from traceprof.render.registry import render
from traceprof.session import opening
from traceprof.session import run as run_module
from traceprof.session.answer import Document, answer, page
from traceprof.session.options import Opening
from traceprof.session.run import open_run
from traceprof.snapshots.kinds import Phase

pytestmark = pytest.mark.usefixtures("times_can_be_set")

LONG_AGO_S = 1_700_000_000
NAMES = [entry.name for entry in ANALYSES]
FEW = ("steps", "kernels", "ranks")
UNCACHED = Opening(is_cached=False)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cache:
    monkeypatch.setenv("TRACEPROF_CACHE", str(tmp_path / "cache"))
    found = Cache.of_user()
    assert found is not None
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was read, in order."""
    found: list[str] = []
    open_ranks = run_module.open_ranks

    def reading(paths: Any, *more: Any, **said: Any) -> Any:
        found.append(Path(paths[0]).name)
        return open_ranks(paths, *more, **said)

    monkeypatch.setattr(run_module, "open_ranks", reading)
    return found


def settled(path: Path) -> Path:
    """Let a file, or those of a folder, be from long ago."""
    for one in [path, *path.rglob("*")]:
        os.utime(one, (LONG_AGO_S, LONG_AGO_S))
    return path


def trace_of(n_steps: int = 6) -> Trace:
    return make_run(Plan(n_ranks=1, n_steps=n_steps)).members[0].trace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "rank0.sqlite"
    write_nsys(trace_of(), found)
    return settled(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "run"
    found.mkdir()
    for member in make_run(Plan(n_ranks=3)).members:
        write_nsys(member.trace, found / f"rank{member.rank}.sqlite")
    return settled(found)


def told(document: Document) -> list[str]:
    return [render(form, document) for form in ("text", "json", "markdown", "html")]


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, result in expected.items():
        own = found[name]
        assert (own.name, own.spec, own.lacks) == (result.name, result.spec, result.lacks)
        assert repr((own.scalars, own.notes)) == repr((result.scalars, result.notes))
        assert list(own.tables) == list(result.tables)
        for table, frame in result.tables.items():
            assert_frame_equal(own.to_frame(table), frame.to_frame(), check_exact=True)


@pytest.mark.parametrize(
    ("window", "names"), [(None, NAMES), ("all", FEW), ("step:1..2", FEW), ("first:1s", FEW)]
)
def test_a_file_is_read_once_and_the_page_is_the_same(
    path: Path, reads: list[str], window: str | None, names: Sequence[str]
) -> None:
    expected = page(open_run([path], UNCACHED).within(window), names)
    assert told(page(open_run([path]).within(window), names)) == told(expected)
    reads.clear()
    again = page(open_run([path]).within(window), names)
    assert reads == []
    assert told(again) == told(expected)
    assert_same(again.results, expected.results)
    assert again.selection == expected.selection


def test_a_run_of_several_files(folder: Path, reads: list[str]) -> None:
    expected = page(open_run([folder], UNCACHED))
    page(open_run([folder]))
    reads.clear()
    again = page(open_run([folder]))
    assert reads == []
    assert told(again) == told(expected)
    assert_same(again.results, expected.results)


def test_what_one_question_found_answers_another(path: Path, reads: list[str]) -> None:
    page(open_run([path]))
    reads.clear()
    for name in ("findings", "kernels", "breakdown"):
        expected = answer(open_run([path], UNCACHED), [name])
        reads.clear()
        assert told(answer(open_run([path]), [name])) == told(expected)
        assert reads == []


def test_phases_of_a_memory_snapshot_do_not_keep_a_page_from_being_kept(
    path: Path, reads: list[str]
) -> None:
    """They are members of an enumeration, which equal the names of ranges."""
    _shared.cache_clear()
    for phases in ([Phase.BACKWARD], [Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER]):
        Names.of(phases)
    page(open_run([path]), FEW)
    reads.clear()
    page(open_run([path]), FEW)
    assert reads == []


def test_what_is_new_is_read_and_what_is_known_is_not_computed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(open_run([path]), ["kernels"])
    computed: list[str] = []
    run_analysis = analyses.run_analysis
    monkeypatch.setattr(
        analyses,
        "run_analysis",
        lambda analysis, ranks: computed.append(analysis.name) or run_analysis(analysis, ranks),  # type: ignore[func-returns-value]
    )
    found = answer(open_run([path]), ["breakdown", "kernels", "steps"])
    assert computed == ["breakdown", "steps"]
    assert list(found.results) == ["breakdown", "kernels", "steps"]


def test_why_there_is_no_result_is_kept_too(tmp_path: Path, reads: list[str]) -> None:
    found = tmp_path / "a.json"
    write(found, [kernel("gemm", 0, 10), kernel("gemm", 20, 10)])
    settled(found)
    expected = answer(open_run([found], UNCACHED), ["copies", "network"])
    answer(open_run([found]), ["copies", "network"])
    reads.clear()
    again = answer(open_run([found]), ["copies", "network"])
    assert dict(again.missing) == dict(expected.missing)
    assert again.missing
    with pytest.raises(NotRecordedError, match="no samples recorded"):
        answer(open_run([found]), ["network"], strict=True)
    assert reads == []


def test_what_lacks_data_is_refused_every_time(tmp_path: Path) -> None:
    found = tmp_path / "a.json"
    write(found, [kernel("gemm", 0, 10), kernel("gemm", 20, 10)])
    settled(found)
    answer(open_run([found]), ["steps"])
    for _ in range(2):
        with pytest.raises(NotRecordedError, match="the trace contains no steps"):
            answer(open_run([found]), ["steps"], strict=True)


@pytest.mark.parametrize(
    "change", ["content", "time", "size", "log", "sidecar of the run", "renamed", "new rank"]
)
def test_a_change_is_seen(folder: Path, reads: list[str], change: str) -> None:
    answer(open_run([folder]), FEW)
    first = folder / "rank0.sqlite"
    if change == "content":
        first.unlink()
        write_nsys(trace_of(9), first)
        os.utime(first, (LONG_AGO_S, LONG_AGO_S))
    elif change == "time":
        os.utime(first, (LONG_AGO_S, LONG_AGO_S + 1))
    elif change == "size":
        with first.open("ab") as file:
            file.write(bytes(4096))
        os.utime(first, (LONG_AGO_S, LONG_AGO_S))
    elif change == "log":
        first.with_name("rank0.sqlite-journal").write_bytes(b"")
    elif change == "sidecar of the run":
        (folder / "run.json").write_text('{"traceprof_run": 1, "ranks": []}')
    elif change == "renamed":
        first.rename(folder / "rank7.sqlite")
    else:
        shutil.copy(first, folder / "rank3.sqlite")
    reads.clear()
    with suppress(TraceprofError):  # one that became unreadable is looked at, too
        answer(open_run([folder]), FEW)
    assert reads


def test_files_outside_that_a_manifest_names_count(
    folder: Path, tmp_path: Path, reads: list[str]
) -> None:
    manifest = tmp_path / "of" / "run.json"
    manifest.parent.mkdir()
    files = ", ".join(
        f'{{"rank": {rank}, "file": "../run/rank{rank}.sqlite"}}' for rank in range(3)
    )
    manifest.write_text(f'{{"traceprof_run": 1, "world_size": 3, "ranks": [{files}]}}')
    settled(manifest)
    answer(open_run([manifest.parent]), FEW)
    reads.clear()
    answer(open_run([manifest.parent]), FEW)
    assert reads == []
    os.utime(folder / "rank1.sqlite", (LONG_AGO_S, LONG_AGO_S + 5))
    answer(open_run([manifest.parent]), FEW)
    assert reads


def test_options_count_and_what_is_in_the_files_that_they_name(
    path: Path, tmp_path: Path, reads: list[str]
) -> None:
    rules = tmp_path / "rules.toml"
    options = Opening(rules=rules)
    answer(open_run([path]), ["kernels"])
    for other in (
        replace(Opening(), warmup_steps=2),
        replace(Opening(), links=("pcie=gen4x16",)),
    ):
        reads.clear()
        answer(open_run([path], other), ["kernels"])
        assert reads
    keys = set()
    for text in ("# one\n", "# two\n", "# one\n"):
        rules.write_text(text)
        keys.add(open_run([path], options).cache.inputs)
    assert len(keys) == 2
    reads.clear()
    answer(open_run([path]).within("step:1"), ["kernels"])
    assert reads


def test_a_file_that_was_just_written_is_not_kept(tmp_path: Path, cache: Cache) -> None:
    found = tmp_path / "now.sqlite"
    write_nsys(trace_of(), found)
    ahead_s = time.time() + 3600  # however long the machine takes from here on
    os.utime(found, (ahead_s, ahead_s))
    answer(open_run([found]), FEW)
    assert cache.usage().entry_count == 0


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_trace = formats.open_trace

    def reading(one: Path, *more: Any) -> Trace:
        os.utime(one, (LONG_AGO_S, LONG_AGO_S + 1))
        return open_trace(one, *more)

    monkeypatch.setattr(opening, "open_trace", reading)
    answer(open_run([path]), ["kernels"])
    assert cache.usage().entry_count == 0


def test_damaged_entries_are_computed_again(path: Path, cache: Cache, reads: list[str]) -> None:
    expected = told(answer(open_run([path]), FEW))
    entries = sorted(cache.folder.iterdir())
    for place, entry in enumerate(entries):
        content = entry.read_bytes()
        entry.write_bytes(content[: len(content) // 2] if place % 2 else b"\0" * len(content))
    reads.clear()
    assert told(answer(open_run([path]), FEW)) == expected
    assert reads
    reads.clear()
    assert told(answer(open_run([path]), FEW)) == expected
    assert reads == []


def test_off_keeps_nothing(path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(open_run([path], UNCACHED), FEW)
    assert not cache.folder.exists()
    monkeypatch.setenv("TRACEPROF_CACHE", "0")
    answer(open_run([path]), FEW)
    assert not cache.folder.exists()


def test_nothing_is_written_beside_the_input(folder: Path) -> None:
    before = sorted(folder.parent.rglob("*"))
    answer(open_run([folder]), FEW)
    made = {
        one.parts[len(folder.parent.parts)] for one in set(folder.parent.rglob("*")) - set(before)
    }
    assert made == {"cache"}


def test_packed_files_are_kept_too(path: Path, reads: list[str]) -> None:
    packed = path.with_name("rank0.sqlite.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    settled(packed)
    expected = told(answer(open_run([packed], UNCACHED), FEW))
    answer(open_run([packed]), FEW)
    reads.clear()
    assert told(answer(open_run([packed]), FEW)) == expected
    assert reads == []


def test_what_runs_are_compared_by_is_kept(path: Path, reads: list[str]) -> None:
    expected = summary_of(open_run([path], UNCACHED), "a", {"network": "calico"})
    summary_of(open_run([path]), "a", {"network": "calico"})
    reads.clear()
    found = summary_of(open_run([path]), "a", {"network": "calico"})
    assert reads == []
    assert_same(found.results, expected.results)
    for name, frame in expected.tables.items():
        assert_frame_equal(found.tables[name].to_frame(), frame.to_frame(), check_exact=True)
    plain = {"tables": {}, "results": {}}
    assert repr(replace(found, **plain)) == repr(replace(expected, **plain))  # type: ignore[arg-type]
    assert summary_of(open_run([path]), "a", {}).labels == {}


@pytest.mark.traces
@pytest.mark.parametrize("name", [real_traces.NSYS[0], real_traces.KINETO[2]])
def test_real_traces(name: str, real_trace: Callable[[str], Path], reads: list[str]) -> None:
    found = settled(real_trace(name))
    expected = page(open_run([found], UNCACHED))
    page(open_run([found]))
    reads.clear()
    again = page(open_run([found]))
    assert reads == []
    assert told(again) == told(expected)
    assert_same(again.results, expected.results)
