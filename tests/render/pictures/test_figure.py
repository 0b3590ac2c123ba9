"""The plain figure: bounded, exact in what it leaves to the picture, and safe."""

from __future__ import annotations

import base64
import json
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.conftest import Run
from tests.render.test_escape import HOSTILE
from traceprof.errors import UsageError
from traceprof.model.timing import TimeWindow
from traceprof.render.pictures.figure import render_picture, timeline_figure
from traceprof.render.pictures.lines import busy_ratios, png_data_url, state_strip, strip
from traceprof.render.timeline.channels import Channel

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=30)


def _channel(*spans: tuple[int, int], category: str = "compute") -> Channel:
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    return Channel(category, starts=starts, ends=ends, names=np.zeros(len(starts), np.int64))


@given(SPANS, st.integers(1, 40))
def test_busy_ratios_are_exact(gaps_and_lengths: list[tuple[int, int]], n_bins: int) -> None:
    ends = np.cumsum([gap + length for gap, length in gaps_and_lengths])
    starts = ends - [length for _, length in gaps_and_lengths]
    channel = Channel("compute", starts=starts, ends=ends, names=np.zeros(len(starts), np.int64))
    t1 = int(ends[-1])
    edges = np.arange(n_bins + 1) * (t1 / n_bins)
    expected = [
        np.clip(np.minimum(ends, b) - np.maximum(starts, a), 0, None).sum() / (t1 / n_bins)
        for a, b in pairwise(edges)
    ]
    np.testing.assert_allclose(busy_ratios(channel, 0, t1, n_bins), expected, atol=1e-9)


def test_a_strip_is_as_strong_as_it_is_busy_and_never_hides_an_event() -> None:
    pixels = strip([(_channel((0, 10), (20, 21)), "#0072B2")], (0, 40), 4)
    assert pixels[0].tolist() == [0x00, 0x72, 0xB2, 255]
    assert pixels[1].tolist() == [0, 0, 0, 0]
    assert 70 <= pixels[2][3] < 255


def test_states_fill_their_column() -> None:
    layers = [(_channel((0, 10)), "#0072B2"), (_channel((10, 20)), "#C9CED6")]
    pixels = state_strip(layers, (0, 20), (2, 8))
    assert (pixels[:, 0] == [0x00, 0x72, 0xB2, 255]).all()
    assert (pixels[:, 1] == [0xC9, 0xCE, 0xD6, 255]).all()


def test_a_png_holds_its_pixels() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    data = base64.b64decode(png_data_url(pixels).partition(",")[2])
    start = data.index(b"IDAT") + 4
    raw = zlib.decompress(data[start : data.index(b"IEND") - 8])
    assert raw == b"".join(b"\x00" + row.tobytes() for row in pixels)


def test_bars_say_what_the_trace_says() -> None:
    trace = TraceBuilder().copy("h2d", 1_000_000, 2_000_000, n_bytes=25_000_000).build()
    figure = timeline_figure(trace, title="t")
    bar = figure.data[0]
    assert (bar.base[0], bar.x[0]) == (0.0, 1.0)
    assert bar.hovertext[0].endswith("1.000 ms · 25.00 MB · 25.00 GB/s")


def test_the_number_of_bars_is_bounded() -> None:
    builder = TraceBuilder()
    for stream in range(30):
        for i in range(300):
            builder.kernel("k", i * 1_000, i * 1_000 + 900 + i, stream=stream)
    figure = timeline_figure(builder.build())
    assert 0 < sum(len(trace.y) for trace in figure.data) <= 1_500


def test_a_window_has_the_times_of_the_whole_trace() -> None:
    trace = TraceBuilder().kernel("a", 0, 10_000_000).kernel("b", 12_000_000, 14_000_000).build()
    figure = timeline_figure(trace, window=TimeWindow(11_000_000, 15_000_000))
    assert tuple(figure.layout.xaxis.range) == (11.0, 15.0)
    assert figure.data[0].base[0] == 12.0


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "\ud800"])
def test_no_name_takes_effect(name: str) -> None:
    builder = TraceBuilder().kernel(name, 0, 1_000).range(name, 0, 1_000).device(0, name)
    figure = json.loads(timeline_figure(builder.build(), title=name).to_json())
    texts = [text for trace in figure["data"] for text in trace["hovertext"]]
    texts += [*figure["layout"]["yaxis"]["ticktext"], figure["layout"]["title"]["text"]]
    for text in texts:
        plain = text.replace("<br>", "").replace("<b>", "").replace("</b>", "")
        assert not set(plain) & set("<>$")
        assert "%{" not in plain


def test_a_trace_with_nothing_in_it_is_a_figure_too() -> None:
    assert timeline_figure(TraceBuilder().build()).layout.height > 0


def test_a_format_that_cannot_be_drawn_is_one_clear_line() -> None:
    figure = timeline_figure(TraceBuilder().kernel("k", 0, 10).build())
    with pytest.raises(UsageError, match=r"cannot write tiff: .*html"):
        render_picture(figure, "tiff")


@pytest.mark.traces
@pytest.mark.chromium
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_command_writes_pictures_where_it_can(
    kind: str, run_traceprof: Run, real_trace: object, tmp_path: Path
) -> None:
    trace = real_trace("nsys/2022.2-saxpy-mpi-a100.sqlite")  # type: ignore[operator]
    done = run_traceprof("timeline", trace, "-o", f"out.{kind}")
    if done.returncode:
        assert "it requires Kaleido (`pip install kaleido`)" in done.stderr
        assert list(tmp_path.iterdir()) == []
        return
    picture = (tmp_path / f"out.{kind}").read_bytes()
    assert picture.startswith(b"\x89PNG" if kind == "png" else b"<svg")
    assert len(picture) > 5_000


def test_devices_of_every_process_are_named_and_drawn_before_threads() -> None:
    builder = TraceBuilder()
    for process in range(1, 21):
        own = {"process": process, "thread": process}
        builder.process(process, rank=process - 1)
        builder.kernel("k", 0, 900, device=process, launched_ns=(0, 10), **own)
        builder.range("forward", 0, 500, **own)
    labels = list(timeline_figure(builder.build()).layout.yaxis.ticktext)
    assert len(labels) == 48
    places = [labels.index(f"<b>rank {rank} · process {rank + 1}</b>") for rank in range(20)]
    assert places == sorted(places)
    for place, process in zip(places, range(1, 21), strict=True):
        assert f"<b>GPU {process}</b>" in labels[place + 1 : place + 4]


def test_lanes_are_called_as_on_the_page_and_the_legend_has_the_states_of_devices() -> None:
    builder = TraceBuilder().process(1, rank=0, name="python")
    builder.range("step", 0, 100, process=1, thread=1).range("a", 10, 90, process=1, thread=1)
    builder.kernel("gemm", 20, 60, process=1, device=0)
    builder.kernel("ncclAllReduce", 40, 80, process=1, device=0)
    figure = timeline_figure(builder.build())
    labels = list(figure.layout.yaxis.ticktext)
    assert "└ depth 1" in labels
    assert "└ overlap 1" in labels
    assert not [label for label in labels if label.startswith("· ")]
    legend = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert {"Compute", "Communication", "Range (NVTX)"} <= set(legend)
    assert legend[-2:] == ["Compute with communication", "Idle"]
    # Without a device nothing is idle.
    host = timeline_figure(TraceBuilder().range("step", 0, 100).build())
    assert "Idle" not in [trace.name for trace in host.data]
