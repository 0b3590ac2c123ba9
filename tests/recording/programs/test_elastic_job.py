"""An elastic job that was recorded for real agrees with what its program printed."""

import json
import math

import pytest

from tests.recording.programs.elastic_job import run_elastic_job
from tests.requirements import require
from traceprof.comparison import TIMELINE_NAME
from traceprof.comparison.elastic import elastic
from traceprof.comparison.jobs import PARTS
from traceprof.comparison.summary.summarize import summarize
from traceprof.formats.runs.files import attempts_of_run, open_run
from traceprof.session.run import open_run as open_one

pytestmark = pytest.mark.torch

SLACK_S = 0.1  # a busy machine may stop the program between a range and its look at the clock


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    require("torch")
    folder = tmp_path_factory.mktemp("elastic")
    return folder / "run", run_elastic_job(folder, "torch")


@pytest.fixture(scope="module")
def told(job):
    return elastic([summarize(open_one([job[0]]))])


def test_every_start_of_every_rank_is_a_file_of_one_run(job):
    folder, printed = job
    assert printed.exit_codes == [0, 137, 0]
    manifests = [json.loads(path.read_text()) for path in folder.glob("manifest-*.json")]
    assert [one["job"] for one in manifests] == ["job"] * 3
    listed = [row["file"] for one in manifests for row in one["ranks"]]
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.sqlite"))
    attempts, _, _ = attempts_of_run([folder])
    last = max(one.number for one in attempts)
    assert sorted((one.number - last, one.rank, one.world_size) for one in attempts)[-5:] == [
        (-2, 0, 2),
        (-2, 1, 2),
        (-1, 0, 1),
        (0, 0, 2),
        (0, 1, 2),
    ]
    ended = {(one.number - last, one.rank): one.ended for one in attempts}
    # The lost node's rank may be either, and the other one failed or was stopped for it.
    assert "killed" in (ended[-2, 0], ended[-2, 1])
    assert ended[-1, 0] == "killed"
    assert ended[0, 0] == ended[0, 1] == "finished"


def test_lives_are_never_mixed(job):
    last = max(one.number for one in attempts_of_run([job[0]])[0])
    for attempt, ranks in ((last - 2, (0, 1)), (last - 1, (0,)), (last, (0, 1))):
        run = open_run([job[0]], attempt=attempt)
        assert run.ranks == ranks
        assert run.world_size == len(ranks)
        assert [one for one in run.warnings if f"started {last + 1} times" in one]


def test_epochs_are_what_the_program_printed(job, told):
    printed = job[1].epochs
    table = told.results["epochs"].table.to_frame()
    assert table["epoch"].tolist() == sorted(printed)
    for row in table.itertuples():
        seconds, world = printed[int(row.epoch)]
        assert row.ranks_count == world
        assert row.steps_count == 10
        assert row.duration_ns / 1e9 == pytest.approx(seconds, rel=0.02, abs=SLACK_S)


def test_the_time_lost_is_what_the_program_printed(job, told):
    printed = job[1]
    # Where the second agent came late, the first one has been alone for a moment.
    table = told.results["restarts"].table.to_frame().tail(2)
    assert table["epoch"].tolist() == sorted(printed.lost)[-2:]
    for row in table.itertuples():
        assert row.lost_ns / 1e9 == pytest.approx(
            printed.lost[int(row.epoch)], rel=0.02, abs=SLACK_S
        )
        # What a restart did not have is not known of it: a start that failed, work done twice.
        known = [getattr(row, f"{part}_ns", math.nan) for part in PARTS]
        explained = sum(ns for ns in known if not math.isnan(ns))
        assert row.lost_ns == pytest.approx(explained + row.unexplained_ns, abs=1e6)
    sizes = zip(table["ranks_before_count"], table["ranks_after_count"], strict=True)
    assert list(sizes) == [(2, 1), (1, 2)]
    assert table["why"].tolist() == ["a rank failed", "nodes joined"]
    timeline = told.results[TIMELINE_NAME].table.to_frame()
    assert {"agents meet", "membership change", "rank killed", "epoch"} <= set(timeline["what"])


def test_epochs_and_lost_time_are_the_whole(job, told):
    epochs, restarts = (
        told.results["epochs"].table.to_frame(),
        told.results["restarts"].table.to_frame(),
    )
    restarts = restarts[restarts["epoch"].isin(job[1].lost)]
    whole_s = (
        epochs["duration_ns"].sum() - epochs["lost_ns"].sum() + restarts["lost_ns"].sum()
    ) / 1e9
    assert whole_s == pytest.approx(job[1].total_s, rel=0.02, abs=2 * SLACK_S)
    parts = told.results["parts"].table.to_frame().set_index("part")["duration_ns"]
    assert parts.drop("total").sum() == pytest.approx(parts["total"])
