"""A job that was restarted is one run: its attempts, its epochs, and what the restart cost."""

import json
from pathlib import Path

import pytest

from tests.attempts import ZERO, S, write_job, write_launcher
from tests.requirements import require
from traceprof.comparison.jobs import elastic_job
from traceprof.comparison.summary.summarize import summarize
from traceprof.session.options import Opening
from traceprof.session.run import open_run


@pytest.fixture
def job(tmp_path):
    return summarize(open_run([write_job(tmp_path / "job")]))


def seconds(frame, *names):
    return [tuple(round(value / S, 3) for value in row) for row in frame[list(names)].to_numpy()]


def test_every_start_of_every_rank_is_there(job):
    attempts = job.table("attempts").to_frame()
    told = attempts[["attempt", "rank", "node", "ended"]].to_numpy().tolist()
    assert told == [
        [0, 0, "here#1", "failed"],
        [0, 1, "here#2", "killed"],
        [1, 0, "here#1", "finished"],
    ]
    assert seconds(attempts, "at_ns", "end_ns") == [(0, 6), (0, 5.5), (10, 17)]
    assert job.started_utc_ns == ZERO


def test_epochs_of_all_lives(job):
    epochs = job.table("epochs").to_frame()
    assert epochs[["attempt", "epoch", "steps_count", "ranks_count"]].to_numpy().tolist() == [
        [0, 0, 2, 2],
        [0, 1, 2, 2],
        [1, 1, 2, 1],
        [1, 2, 2, 1],
    ]
    assert seconds(epochs, "at_ns", "duration_ns") == [(2, 2.5), (4.5, 0.9), (12, 2), (14, 2)]


def test_the_time_lost_and_of_what_it_is(job):
    events = job.table("events").to_frame()
    of_job = events[events["rank"].isna() & (events["node"].fillna("") == "")]
    found = {row["kind"]: row for row in of_job[of_job["attempt"] == 1].to_dict("records")}

    def when(kind):
        return round(found[kind]["at_ns"] / S, 3), round(found[kind]["duration_ns"] / S, 3)

    # Epoch 1 began at 4.5 and begins again at 12: what was done of it is lost.
    assert when("time_lost") == (4.5, 7.5)
    assert found["time_lost"]["value"] == 2
    assert found["time_lost"]["text"] == "a rank failed"
    assert when("redone") == (4.5, 0.9)
    assert when("noticing") == (5.4, 1.0)
    assert when("rendezvous") == (6.4, 3.6)
    assert when("initialization") == (10.5, 0.5)
    assert when("loading") == (11.0, 0.2)
    assert when("setup") == (10.0, 1.3)
    assert found["membership"]["text"] == "nodes left"


def test_what_is_of_one_life_says_so(job):
    assert set(job.table("steps")["attempt"]) == {1}
    (note,) = [note for note in job.notes if "was started" in note.text]
    assert note.values == {"n": 2, "attempt": 1}


def test_without_times_of_starts_nothing_is_told(tmp_path):
    folder = write_job(tmp_path / "job")
    for path in folder.glob("*.json"):
        manifest = json.loads(path.read_text())
        manifest["ranks"] = [
            {name: row[name] for name in ("file", "rank", "host")} for row in manifest["ranks"]
        ]
        path.write_text(json.dumps(manifest))
    summary = summarize(open_run([folder]))
    assert set(summary.table("attempts").to_frame()["attempt"]) == {0}
    assert "time_lost" not in set(summary.table("events").to_frame()["kind"])


@pytest.mark.traces
def test_a_launcher_that_never_got_a_rank_hides_no_restart():
    """A third launcher joined in vain; the program says that it lost 24.95 s at one restart."""
    folder = Path(require("traces")) / "elastic-launcher-without-rank"
    job = elastic_job(summarize(open_run([folder])))
    (lost,) = job.lost
    assert lost.lost_ns == pytest.approx(24.95e9, rel=0.01)
    assert (lost.redone_count, lost.attempt) == (3, 1)
    assert lost.explained_ns == pytest.approx(lost.lost_ns)


def add_late_launcher(folder, start_s, end_s):
    late = {"rank": 0, "world": 1, "ended": "failed", "ran": (start_s, end_s), "epochs": {}}
    write_launcher(folder, "c", [late], [])


def test_a_launcher_that_starts_after_the_end_is_no_restart(tmp_path):
    folder = write_job(tmp_path / "job")
    add_late_launcher(folder, 40, 60)
    summary = summarize(open_run([folder], Opening(attempt=1)))
    assert set(summary.table("attempts").to_frame()["attempt"]) == {0, 1, 2}
    events = summary.table("events").to_frame()
    assert set(events["attempt"].dropna()) == {0, 1}
    assert len(events[events["kind"] == "time_lost"]) == 1
    (end,) = events[events["kind"] == "end"].to_dict("records")
    assert end["at_ns"] == 17 * S
    assert any("after the job had finished" in note.text for note in summary.notes)


def test_a_job_that_failed_and_never_trained_again_lost_that_time(tmp_path):
    folder = write_job(tmp_path / "job")
    manifest = folder / "manifest-a.json"
    manifest.write_text(manifest.read_text().replace('"finished"', '"failed"'))
    add_late_launcher(folder, 40, 60)
    events = summarize(open_run([folder], Opening(attempt=1))).table("events").to_frame()
    lost = events[(events["kind"] == "time_lost") & (events["attempt"] == 2)]
    assert lost["text"].tolist() == ["training did not resume"]
