"""A trainer and a rollout on CPUs in one file have the same steps whatever tables are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.formats.folders import write_tables
from tests.training import MS
from traceprof.comparison.iterations import iterations_of_run
from traceprof.session.run import open_run

N_ROUNDS, ROUND = 8, 100 * MS


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with rounds of 100 ms: two updates of 30 ms, passes of 80 ms, a broadcast."""
    builder = TraceBuilder()
    for rank in range(2):
        builder.process(10 + rank, rank=rank, world_size=2)
    for number in range(N_ROUNDS):
        begin = number * ROUND
        for at in (begin, begin + 30 * MS):
            for place, phase in enumerate(("forward", "backward", "optimizer")):
                start = at + 10 * MS * place
                builder.phase(phase, start, start + 10 * MS, process=10)
        for at in range(begin, begin + 80 * MS, 10 * MS):
            builder.phase("eval", at, at + 9 * MS, process=11)
        for rank, start in ((0, begin + 65 * MS), (1, begin + 85 * MS)):
            builder.phase("communication", start, begin + 95 * MS, process=10 + rank)
            builder.collective(
                "broadcast", start, begin + 95 * MS, process=10 + rank, group_rank=rank,
                backend="gloo", sequence=number, n_bytes=1_000, correlation=2 * number + rank,
            )  # fmt: skip
    folder = tmp_path_factory.mktemp("roles") / "run.tables"
    folder.mkdir()
    write_tables(builder.build(), folder)
    return folder


@pytest.mark.parametrize("names", [["steps"], ["phases", "steps"], ["ranks", "steps"]])
def test_steps_are_rounds_whichever_tables_are_read_first(path: Path, names: list[str]) -> None:
    run = open_run([path])
    found = [run.result(name) for name in names][-1]
    assert found.scalars["source"] == "recorded phases, a rollout and 2 updates per step"
    usual = found.table.take(found.table["kind"] == "usual")
    assert set(usual["duration_ns"].tolist()) == {ROUND}


def test_rounds_of_nodes_are_the_steps_of_the_page(path: Path) -> None:
    of_nodes = iterations_of_run(open_run([path]), "roles")
    assert [one.iterations_ns / one.iterations_count for one in of_nodes] == [ROUND, ROUND]
