"""Levels of detail against what they stand for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceprof.model.activity import IDLE
from traceprof.model.timing import TimeWindow
from traceprof.render.timeline.channels import Channel
from traceprof.viewer.timeline import Level, build_levels, cut_channel, level_for

Gaps = st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 9_000)), min_size=1, max_size=60)


def _channel(gaps: list[tuple[int, int]], copies: int = 1) -> Channel:
    """Return events, each a gap after the one before, repeated ``copies`` times."""
    edges = np.cumsum(np.array(gaps * copies, np.int64).ravel())
    n = len(edges) // 2
    numbers = {"names": np.arange(n), "n_bytes": np.arange(n) - 1, "correlations": np.arange(n)}
    return Channel("h2d", starts=edges[::2], ends=edges[1::2], **numbers)


def _busy(channel: Channel) -> int:
    lengths = channel.ends - channel.starts
    return int((lengths if channel.busy_ns is None else channel.busy_ns).sum())


@given(Gaps)
def test_every_level_keeps_events_busy_time_and_bytes(gaps: list[tuple[int, int]]) -> None:
    channel = _channel(gaps, copies=2_100 // len(gaps) + 1)
    levels = build_levels(channel, 10**12)
    assert levels[0] == Level(0, channel)
    assert levels[-1].channel is not channel
    assert channel.n_bytes is not None
    for level in levels:
        assert level.channel.n_events == len(channel)
        assert _busy(level.channel) == _busy(channel)
        assert level.channel.n_bytes is not None
        assert level.channel.n_bytes.clip(0).sum() == channel.n_bytes.clip(0).sum()
        assert (level.channel.starts[1:] >= level.channel.ends[:-1]).all()


@given(Gaps)
def test_every_level_knows_the_longest_idle_time_of_each_item(
    gaps: list[tuple[int, int]],
) -> None:
    events = _channel(gaps, copies=2_100 // len(gaps) + 1)
    exact = Channel(IDLE, starts=events.starts, ends=events.ends, names=events.names)
    lengths = exact.ends - exact.starts
    for level in build_levels(exact, 10**12)[1:]:
        own = level.channel
        assert own.longest_ns is not None
        assert own.longest_starts is not None
        first = np.searchsorted(exact.starts, own.starts)
        assert own.counts is not None
        for item in (0, len(own) // 2, len(own) - 1):
            inside = slice(first[item], first[item] + own.counts[item])
            place = inside.start + int(lengths[inside].argmax())
            assert own.longest_ns[item] == lengths[place]
            assert own.longest_starts[item] == exact.starts[place]


@given(Gaps)
def test_busy_time_before_an_instant_is_off_by_less_than_two_bins(
    gaps: list[tuple[int, int]],
) -> None:
    channel = _channel(gaps, copies=2_100 // len(gaps) + 1)
    for level in build_levels(channel, 10**12)[1:]:
        for t in (channel.ends[len(channel) // 3], channel.starts[len(channel) // 2]):
            exact = np.minimum(channel.ends, t) - channel.starts
            whole = level.channel.ends <= t
            assert level.channel.busy_ns is not None
            found = int(level.channel.busy_ns[whole].sum())
            assert 0 <= int(exact[channel.starts < t].sum()) - found <= 2 * level.bin_ns


def test_a_level_is_as_coarse_as_a_pixel_and_no_coarser() -> None:
    channel = _channel([(10, 40)], copies=1_000_000)
    levels = build_levels(channel, 50_000_000)
    assert [level.bin_ns for level in levels] == [0, 4_000, 16_000, 64_000]
    assert [len(level.channel) for level in levels] == [1_000_000, 12_500, 3_125, 782]
    assert level_for(levels, 3_999).bin_ns == 0
    assert level_for(levels, 15_999).bin_ns == 4_000


def test_few_events_have_one_level() -> None:
    assert len(build_levels(_channel([(10, 40)], copies=2_000), 10**9)) == 1


@given(Gaps, st.integers(-10, 400_000), st.integers(0, 300_000))
def test_a_cut_is_what_touches_the_window(
    gaps: list[tuple[int, int]], start: int, length: int
) -> None:
    channel = _channel(gaps)
    part = cut_channel(channel, TimeWindow(start, start + length))
    # Of events without duration at one instant, neighbors of the edge may come along.
    expected = [
        i
        for i in range(len(channel))
        if channel.ends[i] >= start and channel.starts[i] < start + length
    ]
    assert part.names.tolist() == expected
    assert part.starts.tolist() == channel.starts[expected].tolist()
    assert part.n_bytes is not None
    assert part.n_bytes.tolist() == [i - 1 for i in expected]
