"""What people ask for: nouns, the ways to show them, and the names of tables that stay."""

from __future__ import annotations

import pytest

from traceprof.errors import UsageError
from traceprof.measures import ANALYSES, names_shown, nouns, shown_by


def test_a_noun_alone_shows_the_table_of_its_name() -> None:
    for noun, (first, *_) in nouns().items():
        assert first.name == noun
        assert names_shown(noun) == [noun]
        assert first.words == noun


def test_a_table_is_shown_in_one_way_that_its_old_name_means_too() -> None:
    words = [entry.words for entry in ANALYSES]
    assert len(set(words)) == len(words)
    for noun, entries in nouns().items():
        for entry in entries:
            assert names_shown(entry.name) == [entry.name]
            if entry.way:
                assert names_shown(noun, entry.way) == [entry.name]
                others = [one.way for one in entries if one is not entry]
                assert entry.way not in others
            else:
                assert entries == (entry,)


def test_several_ways_are_several_tables() -> None:
    assert names_shown("kernels", "class,shape") == ["classes", "occupancy"]


def test_the_command_for_a_table_is_worded_once() -> None:
    assert shown_by("callers") == "traceprof show collectives --by caller"
    assert shown_by("messages") == "traceprof show collectives --by event"
    assert shown_by("collectives") == "traceprof show collectives"
    assert shown_by("findings") == "traceprof findings"


@pytest.mark.parametrize(
    ("noun", "by", "said"),
    [
        ("kernels", "clas", "kernels has no grouping 'clas'; did you mean 'class'?"),
        (
            "kernels",
            "xyz",
            "kernels has no grouping 'xyz'; use name, duration, class, shape, launch",
        ),
        ("kernels", "event", "kernels has no grouping 'event'; use `traceprof ops TRACE`"),
        ("memory", "step", "--by step: memory has only one grouping: remove --by"),
        (
            "callers",
            "rank",
            "--by rank: callers already means `traceprof show collectives --by caller`",
        ),
        ("colectives", None, "unknown table 'colectives'; did you mean 'collectives'?"),
        ("colectives", "caller", "unknown table 'colectives'; did you mean 'collectives'?"),
    ],
)
def test_what_is_none_is_answered_with_what_was_meant(noun: str, by: str | None, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        names_shown(noun, by)
    assert str(refused.value).startswith(said)
