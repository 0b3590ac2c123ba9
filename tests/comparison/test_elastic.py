"""A job whose ranks come and go: its epochs against typical ones, and what restarts cost."""

from typing import Any

import pytest

from tests.attempts import write_job
from traceprof.comparison import TIMELINE_NAME
from traceprof.comparison.elastic import elastic
from traceprof.comparison.jobs import elastic_job
from traceprof.comparison.summary.summarize import summarize
from traceprof.errors import UsageError
from traceprof.model.results import Note
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.table import Table
from traceprof.render.charts.elastic import elastic_chart
from traceprof.session.run import open_run

S = 1_000_000_000


def job(name, epochs, events=(), total_s=None, accuracy=()) -> Summary:
    """Return a job of a log: seconds of epochs, (kind, seconds, epoch or None) of events."""
    rows, at = [], 0.0
    for number, seconds in enumerate(epochs):
        rows.append({"attempt": 0, "epoch": number, "at_ns": at * S, "duration_ns": seconds * S})
        at += seconds
    happened = [
        {
            "event": place,
            "kind": kind,
            "duration_ns": seconds * S,
            "attempt": 0,
            "epoch": epoch,
            "at_ns": 0.0 if epoch is None else rows[epoch]["at_ns"],
            "text": f"{kind} took {seconds}",
        }
        for place, (kind, seconds, epoch) in enumerate(events)
    ]
    measured = [{"measure": "total_ns", "value": total_s * S}] if total_s is not None else []
    values = [
        {"metric": "top1", "epoch": number + 1, "value": value, "attempt": 0}
        for number, value in enumerate(accuracy)
    ]
    tables = {"epochs": rows, "events": happened, "measures": measured, "metrics": values}
    return Summary(
        name,
        origin="log:notes",
        tables={own: table(own, found) for own, found in tables.items()},
    )


def table(name: str, rows: Any) -> Table:
    spec = SUMMARY.table(name)
    return Table.of_rows(rows, [column.name for column in spec])


ELASTIC = job(
    "elastic",
    [30, 10, 10, 60, 14, 15, 16, 40],
    [
        ("setup", 5, None),
        ("initialization", 3, 3),
        ("setup", 2, 3),
        ("time_lost", 12, 3),
        ("initialization", 1, 7),
        ("time_lost", 4, 7),
    ],
    total_s=210,
    accuracy=[0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.45],
)
FIXED = job("fixed", [28, 10, 10, 10, 10, 10, 10, 10], [("setup", 6, None)], total_s=110)


def seconds(result, *names):
    return [
        tuple(round(value / S, 6) for value in row)
        for row in result.table.to_frame()[list(names)].to_numpy(float)
    ]


def test_what_a_restart_cost_and_what_explains_it():
    result = elastic([ELASTIC]).results["restarts"]
    assert result.table.to_frame()["epoch"].tolist() == [3, 7]
    assert seconds(result, "lost_ns", "initialization_ns", "unexplained_ns", "beyond_ns") == [
        (12, 3, 7, 60 - 12 - 15),
        (4, 1, 3, 40 - 4 - 15),
    ]
    assert result.table.to_frame()["setup_ns"].tolist()[0] == 2 * S
    assert result.table.to_frame()["setup_ns"].isna().tolist() == [False, True]
    assert result.scalars == {
        "lost_ns": 16 * S,
        "explained_ns": 6 * S,
        "unexplained_ns": 10 * S,
    }


def test_a_typical_epoch_follows_and_precedes_where_none_does():
    epochs = elastic([ELASTIC]).results["epochs"]
    # Epoch 0 warms up; of 4, 5 and 6 the middle one is typical for 3, and for 7, the last.
    assert seconds(epochs, "typical_ns") == [(10,)] * 3 + [(15,)] * 5
    assert epochs.table.to_frame()["typical_of"].tolist() == ["1–2"] * 3 + ["4–6"] * 5
    assert seconds(epochs, "beyond_ns")[0] == (20,)
    assert epochs.table.to_frame()["accuracy"].tolist() == [
        0.1,
        0.2,
        0.3,
        0.35,
        0.4,
        0.5,
        0.6,
        0.45,
    ]


def test_the_parts_add_up_to_the_total():
    parts = (
        elastic([ELASTIC]).results["parts"].table.to_frame().set_index("part")["duration_ns"] / S
    )
    assert parts.to_dict() == {
        "setup": 5,
        "epochs, typical length": 3 * 10 + 5 * 15,
        "first epoch, extra time": 20,
        "epochs with restarts, extra time": 33 + 21,
        "lost: worker initialization": 4,
        "lost: setup": 2,
        "lost: cause unknown": 10,
        "unaccounted time": 210 - 200,
        "total": 210,
    }
    assert parts.drop("total").sum() == 210


def test_two_jobs_stand_side_by_side():
    comparison = elastic([FIXED, ELASTIC])
    epochs = comparison.results["epochs"]
    assert seconds(epochs, "base_ns", "duration_ns", "difference_ns")[:4] == [
        (28, 30, 2),
        (10, 10, 0),
        (10, 10, 0),
        (10, 60, 50),
    ]
    parts = comparison.results["parts"].table.to_frame().set_index("part")
    assert parts.loc["total", "difference_ns"] == 100 * S
    assert parts.drop("total")["difference_ns"].sum() == pytest.approx(100 * S)
    first = comparison.verdict[0]
    assert (first.values["run"], first.values["base"]) == ("elastic", "fixed")
    assert (first.values["more"], first.values["word"]) == (100 * S, "more")
    # Which job restarted is told only where several did.
    assert "run" not in comparison.results["restarts"].table.to_frame()
    assert set(comparison.results[TIMELINE_NAME].table.to_frame()["run"]) == {"elastic", "fixed"}


def test_epochs_that_nothing_explains_are_named():
    named = [note.values for note in elastic([ELASTIC]).verdict if "epoch" in note.values]
    assert [(one["epoch"], one["beyond"] / S, one["typical_of"]) for one in named] == [
        (3, 33, "4–6"),
        (7, 21, "4–6"),
    ]


def test_an_accuracy_that_went_back_is_told():
    notes = [note for note in elastic([ELASTIC]).notes if "dropped from" in note.text]
    assert [(one.values["before"], one.values["now"], one.values["epoch"]) for one in notes] == [
        (0.6, 0.45, 7)
    ]


def test_what_is_left_over_is_told_once():
    (note,) = [note for note in elastic([ELASTIC]).notes if "may be evaluation" in note.text]
    assert note.values["left"] == 10 * S
    own = Note.of("the log does not explain {rest:ns}", rest=10.0 * S)
    again = Summary("elastic", origin=ELASTIC.origin, tables=ELASTIC.tables, notes=(own,))
    assert not [note for note in elastic([again]).notes if "may be evaluation" in note.text]


def test_a_job_that_never_restarted():
    comparison = elastic([FIXED])
    assert comparison.results["restarts"].table.to_frame().empty
    assert comparison.verdict[-1].text == "No restart of {run} is recorded."


def test_a_log_that_tells_of_restarts_without_their_cost():
    run = Summary(
        "agents",
        origin="log:torchrun",
        tables={"events": table("events", [{"event": 0, "kind": "restart", "value": 8}])},
    )
    comparison = elastic([run])
    assert "The time lost is not recorded" in comparison.verdict[-1].text
    assert "parts" not in comparison.results
    assert comparison.results[TIMELINE_NAME].table.to_frame()["what"].tolist() == ["restart"]


@pytest.mark.parametrize("runs", [[], [FIXED] * 3, [Summary("nothing")]])
def test_what_is_no_job_is_refused(runs):
    with pytest.raises(UsageError, match=r"expected one run|contains no epochs, starts or events"):
        elastic(runs)


def test_a_recorded_job(tmp_path):
    """Its lost time lies before the epoch that begins again, not in it."""
    comparison = elastic([summarize(open_run([write_job(tmp_path / "job")]))])
    (row,) = comparison.results["restarts"].table.to_frame().to_dict("records")
    assert (row["epoch"], row["attempt"], row["why"]) == (1, 1, "a rank failed")
    assert (row["ranks_before_count"], row["ranks_after_count"]) == (2, 1)
    assert round(row["lost_ns"] / S, 3) == 7.5
    assert abs(row["unexplained_ns"]) < S / 1000
    epochs = comparison.results["epochs"].table.to_frame()
    assert epochs["epoch"].tolist() == [0, 1, 2]
    assert epochs["lost_ns"].tolist() == [0, 0, 0]
    parts = comparison.results["parts"].table.to_frame().set_index("part")["duration_ns"] / S
    assert parts["total"] == 17
    assert parts["lost: rendezvous"] == pytest.approx(3.6)
    assert parts["lost: repeated steps"] == pytest.approx(0.9)


def test_the_chart_has_a_lane_for_each_rank_and_bars_of_their_length(tmp_path):
    comparison = elastic([summarize(open_run([write_job(tmp_path / "job")]))])
    chart = elastic_chart(comparison.results[TIMELINE_NAME])
    assert chart.count("<svg") == 1
    for lane in ("rank 0, here#1", "rank 1, here#2", "time lost", "epochs"):
        assert f">{lane}</text>" in chart
    assert "a rank failed" in chart
    assert "epoch 2, attempt 1" in chart
    without = comparison.results[TIMELINE_NAME]
    assert elastic_chart(without.with_table(without.table.assign(at_ns=float("nan")))) == ""


def test_restarts_without_an_epoch_have_the_events_since_the_one_before() -> None:
    events = [("loading", 2, None), ("time_lost", 10, None)]
    events += [("loading", 3, None), ("setup", 1, None), ("time_lost", 20, None)]
    first, second = elastic_job(job("log", [30, 30], events)).lost
    assert first.parts == {"loading": 2 * S}
    assert second.parts == {"loading": 3 * S, "setup": S}
