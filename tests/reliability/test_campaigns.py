"""Short runs of both campaigns with fixed seeds; long ones are scripts/fuzz and scripts/faults."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.reliability import page
from tests.reliability.bounds import (
    FLOOR_BYTES,
    ask,
    bound_bytes,
    corpus_files,
    traces,
)
from tests.reliability.campaign import run_campaign
from tests.reliability.commands import Server, serving
from tests.reliability.faults import Injector, eight_at_once, full_disks
from tests.reliability.inputs import CLASSES
from tests.reliability.machine import loaded_before
from tests.reliability.machine_faults import FAULTS, PRINTED, printed, printed_in_parts
from tests.reliability.pairs import pairs_of, small_traces, try_pairs
from tests.reliability.shapes import streams
from tests.reliability.worker import ACCEPTED, REFUSED
from tests.reliability.workplace import JOBS, Job, Workplace
from tests.requirements import ROOT
from traceprof.cli.commands import COMMANDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("reliability") / "place")


@pytest.fixture(scope="module")
def server(place: Workplace) -> Iterator[Server]:
    with serving(place.folder, loaded_before()) as running:
        yield running


@pytest.mark.parametrize("inject", [one for one in FAULTS if one is not eight_at_once])
def test_faults_lose_nothing(place: Workplace, server: Server, inject: Injector) -> None:
    tally = inject(place, server, random.Random(3), 2)
    assert tally.lost == []
    assert tally.injected or inject is full_disks  # which takes root


@pytest.mark.parametrize("job", PRINTED, ids=lambda job: job.name)
def test_an_answer_is_printed_wholly_or_the_command_fails(
    place: Workplace, server: Server, job: Job
) -> None:
    place.prepare(job)
    whole = printed(server, job)
    ways = ("full", "slow") if job in PRINTED[::6] else ("full",)
    for way, is_buffered in product(ways, (False, True)):
        ended, harms = printed_in_parts(server, job, whole, way, 0.4, is_buffered=is_buffered)
        assert harms == []
        assert ended.code == int(way == "full")


def test_every_command_that_prints_is_tried() -> None:
    printing = {job.arguments[0] for job in PRINTED}
    # These print no answer, only messages on standard error; mcp answers programs.
    silent = {"record", "try", "recover", "report", "timeline", "view", "mcp", "cut", "export"}
    # Tests of recording/live: they need a running program.
    running = {"watch", "capture"}
    assert {command.name for command in COMMANDS} <= printing | silent | running
    assert not {command.name for command in COMMANDS} & printing & (silent | running)


@pytest.mark.slow
def test_every_file_of_the_corpus_takes_no_more_memory_than_it_may(
    server: Server, tmp_path: Path
) -> None:
    beyond = []
    for number, path in enumerate(corpus_files(tmp_path / "corpus")):
        question = ("analyze",) if number % 8 == 0 else ("show", "kernels,quality")
        ended = ask(server, question, path)
        if ended.peak_bytes > bound_bytes(path) or ended.code not in range(5):
            beyond.append(f"{path.name}: exit {ended.code}, {ended.peak_bytes} bytes")
    assert beyond == []


def test_memory_beyond_the_bound_is_seen(server: Server, tmp_path: Path) -> None:
    path = streams(tmp_path, 20)
    least = ask(server, ("info",), path).peak_bytes
    assert 30 << 20 < least <= bound_bytes(path) == FLOOR_BYTES + 24 * path.stat().st_size


@pytest.mark.traces
def test_any_two_traces_are_a_run(tmp_path: Path) -> None:
    chosen = random.Random(3).sample(traces(), 3)
    pairs = pairs_of(small_traces(chosen, tmp_path / "pieces"), random.Random(3), 2)
    tally = try_pairs(pairs, tmp_path / "out")
    assert tally.defects == []
    assert tally.verdicts[ACCEPTED] > tally.verdicts[REFUSED]


@pytest.mark.slow
def test_damaged_files_give_right_numbers_or_one_line(tmp_path: Path) -> None:
    tried = run_campaign(tmp_path, seed=3, count=130)
    assert [line for one in tried for line in one.defects] == []
    assert all(one.verdicts for one in tried)


def test_an_undamaged_file_is_right(tmp_path: Path) -> None:
    tried = run_campaign(tmp_path, seed=3, count=20, classes=["nsys_rows", "kineto_values"])
    assert len(tried) == 20
    assert all(one.verdicts["right"] for one in tried)


def test_every_command_that_writes_is_tried() -> None:
    writing = {job.arguments[0] for job in JOBS}
    reading = {"findings", "explain", "view", "info", "doctor", "memory", "mcp"}
    # Tests of recording and of trying: they need programs; `demo` writes as `report` does.
    elsewhere = {"recover", "try", "demo", "watch", "capture"}
    assert writing | reading | elsewhere == {command.name for command in COMMANDS}


def test_the_page_is_what_was_counted() -> None:
    counts = json.loads((ROOT / "docs" / "reliability.json").read_text())
    assert (ROOT / "docs" / "reliability.md").read_text() == page.page_of(counts)
    assert [row["class"] for row in counts["inputs"]["rows"]] == [one.__name__ for one in CLASSES]
    assert len(counts["faults"]["rows"]) == len(FAULTS)
