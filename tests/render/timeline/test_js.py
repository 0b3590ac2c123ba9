"""The JavaScript of the timeline: its own tests under node, and its numbers against numpy."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.real_traces import KINETO, NSYS, NVPROF
from tests.requirements import ROOT, require
from traceprof.formats import open_trace
from traceprof.measures.idle.gaps import find_gaps
from traceprof.model.trace import Trace
from traceprof.render.timeline.channels import Lanes, condense
from traceprof.render.timeline.drawn import device_states, with_states
from traceprof.render.timeline.encode import encode_lanes
from traceprof.render.timeline.lanes import build_lanes
from traceprof.render.timeline.render import (
    module_order,
    read_asset,
    timeline_head,
    timeline_script,
)

JS_TESTS = ROOT / "tests" / "render" / "timeline_js"
ASSETS = ROOT / "traceprof" / "render" / "timeline" / "assets"
MODULES = sorted(path.name for path in ASSETS.glob("*.mjs"))


def _random_trace(seed: int = 1, n: int = 3_000) -> Trace:
    random = np.random.default_rng(seed)
    builder = TraceBuilder()
    for stream, name in ((7, "gemm"), (20, "ncclAllReduce"), (7, "relu")):
        starts = np.cumsum(random.integers(1, 3_000, n))
        for start, length in zip(
            starts.tolist(), random.integers(0, 2_000, n).tolist(), strict=True
        ):
            builder.kernel(name, start, start + length, stream=stream, correlation=start)
    for start in random.integers(0, 4_000_000, 300).tolist():
        builder.copy("h2d", start, start + 5_000, n_bytes=int(random.integers(0, 1 << 40)))
    return builder.range("epoch", 0, 5_000_000).build()


def _measure(
    trace: Trace, tmp_path: Path, views: list[tuple[int, int, int]], lanes: Lanes | None = None
) -> dict[str, Any]:
    lanes = lanes or build_lanes(trace, trace.span)
    head = timeline_head(trace, trace.span, lanes.n_events)
    file = tmp_path / "lanes.bin"
    file.write_bytes(encode_lanes(lanes, head))
    arguments = [str(number) for view in views for number in view]
    command = [require("node"), str(JS_TESTS / "measure.mjs"), str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_modules_pass_their_own_tests() -> None:
    tests = [str(path) for path in sorted(JS_TESTS.glob("*.test.mjs"))]
    done = subprocess.run(
        [require("node"), "--test", *tests],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_decoding_gives_back_every_number(tmp_path: Path) -> None:
    trace = _random_trace()
    expected = build_lanes(trace, trace.span)
    found = _measure(trace, tmp_path, [])["channels"]
    assert len(found) == len(expected.channels)
    for js, own in zip(found, expected.channels, strict=True):
        assert js["category"] == own.category
        assert js["starts"] == own.starts.tolist()
        assert js["ends"] == own.ends.tolist()
        assert js["names"] == [expected.names[i] for i in own.names]
        assert js["bytes"] == (None if own.n_bytes is None else own.n_bytes.tolist())
        assert (js["correlations"] is None) == (own.correlations is None)


def test_what_was_linked_is_linked_and_nothing_else(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for i, (process, number) in enumerate([(1, 70), (2, 70), (1, 12), (1, 900), (2, 3)]):
        builder.kernel("k", 100 + 20 * i, 110 + 20 * i, process=process, correlation=number)
    for i, (process, number) in enumerate([(1, 12), (1, 13), (2, 70), (1, 70), (2, 4)]):
        builder.api_call("launch", 10 * i, 10 * i + 5, process=process, correlation=number)
    trace = builder.build()
    lanes = build_lanes(trace, trace.span)
    js = iter(_measure(trace, tmp_path, [])["channels"])
    links: dict[tuple[int, int], set[tuple[str, int]]] = {}
    for group in lanes.groups:
        for row in group.rows:
            for channel in row.channels:
                found = next(js)["correlations"]
                assert channel.correlations is not None
                for link, number in zip(found, channel.correlations.tolist(), strict=True):
                    if link >= 0:
                        links.setdefault((group.process, link), set()).add((row.kind, number))
    assert sorted((process, sorted(members)) for (process, _), members in links.items()) == [
        (1, [("api", 12), ("gpu", 12)]),
        (1, [("api", 70), ("gpu", 70)]),
        (2, [("api", 70), ("gpu", 70)]),
    ]


def test_occupancy_equals_numpy_at_every_zoom(tmp_path: Path) -> None:
    trace = _random_trace()
    whole = trace.span.duration_ns
    views = [
        (0, whole, 1300),
        (whole // 3, whole // 2, 1300),
        (10_000, 90_000, 700),
        (500, 600, 50),
    ]
    found = _measure(trace, tmp_path, views)["measured"]
    lanes = build_lanes(trace, trace.span)
    for (t0, t1, bins), per_channel in zip(views, found, strict=True):
        for ratios, channel in zip(per_channel, lanes.channels, strict=True):
            expected = _brute_occupancy(channel.starts, channel.ends, t0, t1, bins)
            np.testing.assert_allclose(ratios, expected, rtol=0, atol=1e-7)


def _brute_occupancy(
    starts: np.ndarray, ends: np.ndarray, t0: int, t1: int, bins: int
) -> np.ndarray:
    """Overlap of every bin with every event, without any cleverness."""
    edges = t0 + np.arange(bins + 1) * ((t1 - t0) / bins)
    left = np.maximum(starts[None, :], edges[:-1, None])
    right = np.minimum(ends[None, :], edges[1:, None])
    return np.maximum(right - left, 0).sum(axis=1) / ((t1 - t0) / bins)


def test_the_states_of_the_browser_are_those_of_python(tmp_path: Path) -> None:
    assert _devices_with_equal_states(_random_trace(seed=2), tmp_path) == 1


@pytest.mark.traces
@pytest.mark.parametrize("name", [*NSYS, *KINETO, *NVPROF])
def test_so_they_are_on_real_traces(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    trace = open_trace(real_trace(name))
    worked = {*trace.kernels.to_frame()["device"], *trace.copies.to_frame()["device"]}
    assert _devices_with_equal_states(trace, tmp_path) >= len(worked)


def _devices_with_equal_states(trace: Trace, tmp_path: Path) -> int:
    """Return how many devices there are, each with the states that Python finds."""
    found = _measure(trace, tmp_path, [])["states"]
    lanes = build_lanes(trace, trace.span)
    devices = 0
    for group, states in zip(lanes.groups, found, strict=True):
        if group.kind != "device":
            assert states is None
            continue
        devices += 1
        expected = {c.category: c for c in device_states(group, trace.span.duration_ns)}
        assert {state["category"] for state in states} == set(expected)
        for state in states:
            own = expected[state["category"]]
            assert state["starts"] == own.starts.tolist()
            assert state["ends"] == own.ends.tolist()
        total = sum(int((c.ends - c.starts).sum()) for c in expected.values())
        assert total == trace.span.duration_ns
    return devices


@pytest.mark.parametrize("bin_ns", [0, 1_000, 64_000, 10_000_000])
def test_the_longest_gap_is_that_of_python_at_every_level(tmp_path: Path, bin_ns: int) -> None:
    builder = TraceBuilder().range("set-up", 0, 1_000_000)
    for device, first_ns in ((0, 30_000), (1, 990_000), (2, 400_000)):
        random = np.random.default_rng(device)
        at = first_ns
        for length in random.integers(10, 3_000, 500).tolist():
            builder.kernel("gemm", at, at + length, device=device)
            at += length + int(random.integers(0, 5_000))
    trace = builder.build()
    lanes = build_lanes(trace, trace.span)
    if bin_ns:
        lanes = condense(with_states(lanes, trace.span.duration_ns), bin_ns)
    found = dict(
        zip(
            (g.device for g in lanes.groups),
            _measure(trace, tmp_path, [], lanes)["gaps"],
            strict=True,
        )
    )
    gaps = find_gaps(trace)
    for device in (0, 1, 2):
        own = gaps.take(gaps["device"] == device)
        longest = int(np.argmax(own["end_ns"] - own["start_ns"]))
        edges = own.row(longest)["start_ns"], own.row(longest)["end_ns"]
        assert found[device] == [edge - trace.span.start_ns for edge in edges]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_in_the_page_and_small(name: str) -> None:
    source = read_asset(name)
    assert any(name in module_order(entry) for entry in ("main.mjs", "first_theme.mjs"))
    assert len(source.splitlines()) <= 260
    assert max(map(len, source.splitlines())) <= 130


@pytest.mark.parametrize("name", MODULES)
def test_no_module_turns_text_into_code_or_reaches_out(name: str) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|fetch\(|XMLHttp"
    )
    assert not re.search(forbidden + r"|WebSocket|sendBeacon|https?://", read_asset(name))


def test_top_level_names_are_unique_in_the_joined_script() -> None:
    names: list[str] = []
    for module in module_order("main.mjs"):
        pattern = r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)"
        names += re.findall(pattern, read_asset(module), re.MULTILINE)
    assert len(names) == len(set(names)), sorted({n for n in names if names.count(n) > 1})


def test_imports_name_what_the_other_module_exports() -> None:
    for module in MODULES:
        imports = re.findall(
            r'^import \{([^}]*)\} from "\./([a-z_]+\.mjs)"', read_asset(module), re.M
        )
        for names, source in imports:
            exported = re.findall(
                r"^export (?:async )?(?:function|class|const) (\w+)", read_asset(source), re.M
            )
            wanted = {name.strip() for name in names.split(",") if name.strip()}
            assert wanted <= set(exported), (module, source)
            body = re.sub(r"^import[^;]*;\n", "", read_asset(module), flags=re.M)
            unused = {name for name in wanted if not re.search(rf"\b{name}\b", body)}
            assert not unused, (module, unused)


def test_the_joined_script_is_valid(tmp_path: Path) -> None:
    script = tmp_path / "page.js"
    script.write_text(timeline_script(), "utf-8")
    done = subprocess.run(
        [require("node"), "--check", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "import " not in re.sub(r"//.*|/\*.*?\*/", "", timeline_script(), flags=re.S)
