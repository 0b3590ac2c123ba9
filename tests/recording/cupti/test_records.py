"""CUPTI's records as tables: what an H100 left, to the last byte; devices and clocks."""

import gzip

import numpy as np
import pytest

from tests.requirements import ROOT
from traceprof.formats.shared.cupti import api_names
from traceprof.recording.cupti.records import (
    COPY,
    DRIVER,
    KERNEL,
    RUNTIME,
    SYNC,
    activity_tables,
    number_devices,
    split_buffer,
)
from traceprof.recording.cupti.spool import Clocks, DeviceActivity, DeviceFacts

H100 = ROOT / "fixtures" / "traces" / "cupti-13.0-h100.bin.gz"
STEPS = {1: 96, 2: 88, 3: 216, 4: 40, 5: 40, 10: 216, 17: 56, 22: 96, 38: 56}
"""How CUPTI 13.0 steps."""


def test_what_an_h100_left_is_understood_to_the_last_byte():
    body = gzip.decompress(H100.read_bytes())
    found, n_bytes = split_buffer(body, STEPS)
    assert n_bytes == len(body) == 172_840
    counts = {kind: len(rows) for kind, rows in found.items()}
    assert counts == {KERNEL: 180, RUNTIME: 2430, DRIVER: 843, COPY: 20, SYNC: 20}
    calls = np.concatenate([found[kind]["correlation"] for kind in (RUNTIME, DRIVER)])
    assert len(np.unique(calls)) == len(calls) == 3273
    for kind in (KERNEL, COPY, SYNC):
        assert np.isin(found[kind]["correlation"], calls).all()
    kernels = found[KERNEL]
    took = (kernels["end"] - kernels["start"]).astype(np.int64)
    assert (took.min(), took.max()) == (992, 7648)
    launching = found[DRIVER][np.isin(found[DRIVER]["correlation"], kernels["correlation"])]
    assert {api_names("driver")[int(one)] for one in launching["cbid"]} == {"cuLaunchKernel"}
    assert len(launching) == 20


def test_it_becomes_tables(monkeypatch):
    activity = DeviceActivity(7, H100, version=130000, steps=STEPS)
    body = gzip.decompress(H100.read_bytes())
    monkeypatch.setattr(
        "traceprof.recording.cupti.records.buffers", lambda _one: iter([(body, {})])
    )
    (tables,) = activity_tables(activity, {}, lambda times: times, str)
    assert {name: len(table) for name, table in tables.items()} == {
        **dict.fromkeys(("kernels", "kernel_shapes"), 180),
        **dict.fromkeys(("copies", "syncs"), 20),
        "api_calls": 3273,
    }
    kernels = tables["kernels"]
    assert (np.diff(kernels["start_ns"]) > 0).all()
    assert (kernels["process"] == 7).all()
    assert (kernels["device"] == 0).all()
    assert (tables["syncs"]["device"] == 0).all()  # of the context that the kernels told
    assert set(tables["copies"]["direction"].tolist()) == {"h2d"}
    assert 1 <= tables["kernel_shapes"]["block_x"].max() <= 1024


@pytest.mark.parametrize("cut", [1, 7, 8, 100, 172_839])
def test_what_is_cut_short_is_understood_as_far_as_it_goes(cut):
    body = gzip.decompress(H100.read_bytes())[:cut]
    _, n_bytes = split_buffer(body, STEPS)
    assert n_bytes <= cut
    assert cut - n_bytes < 216


def test_a_kind_that_is_shorter_than_any_known_one_is_left_out():
    body = gzip.decompress(H100.read_bytes())
    found, _ = split_buffer(body, {**STEPS, KERNEL: 144})
    assert KERNEL not in found


def _device(number: int, uuid: str) -> DeviceFacts:
    return DeviceFacts(number, 90, 132, 80 << 30, 3_350_000_000_000, uuid, "H100")


def test_devices_that_processes_number_alike_are_told_apart(tmp_path):
    one, other = (DeviceActivity(pid, tmp_path) for pid in (1, 2))
    one.devices = [_device(0, "A"), _device(1, "B")]
    other.devices = [_device(0, "A"), _device(1, "B")]
    numbers, devices = number_devices([one, other])
    assert [(device.device, device.uuid) for device in devices] == [(0, "A"), (1, "B")]
    one.devices, other.devices = [_device(0, "A")], [_device(0, "B")]  # CUDA_VISIBLE_DEVICES
    numbers, devices = number_devices([one, other])
    assert numbers == {(1, 0): 0, (2, 0): 1}
    assert [(device.device, device.uuid) for device in devices] == [(0, "A"), (1, "B")]


def test_times_are_those_of_the_wall_clock(monkeypatch):
    """Of a CUPTI that counts from the start of the machine (WSL), and drifts."""
    activity = DeviceActivity(7, H100, version=130000, steps=STEPS)
    body = gzip.decompress(H100.read_bytes())
    monkeypatch.setattr(
        "traceprof.recording.cupti.records.buffers", lambda _one: iter([(body, {})])
    )
    (plain,) = activity_tables(activity, {}, lambda times: times, str)
    first, last = (int(plain["kernels"]["start_ns"][at]) for at in (0, -1))
    activity.clocks = [Clocks(first, first + 10**9, 1), Clocks(last, last + 10**9 + 5000, 2)]
    (moved,) = activity_tables(activity, {}, lambda times: times, str)
    shift = moved["kernels"]["start_ns"] - plain["kernels"]["start_ns"]
    assert (shift[0], shift[-1]) == (10**9, 10**9 + 5000)
    assert (np.diff(shift) >= 0).all()


def test_a_clock_that_was_set_and_times_outside_are_said():
    activity = DeviceActivity(7, H100, is_cut=False)
    activity.clocks = [Clocks(0, 10**12, 0), Clocks(10**9, 10**12 + 5 * 10**9, 10**9)]
    assert "the clock changed" in activity.losses()[0]
    activity.clocks = [Clocks(10**18, 10**18, 0), Clocks(10**18 + 1, 10**18 + 1, 1)]
    activity.first_ns, activity.last_ns = 12, 10**18
    assert "are outside the recording" in activity.losses()[0]
