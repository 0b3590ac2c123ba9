import math
import os
import socket
import struct
import subprocess
import threading

import pytest

from traceprof.recording.sampling.host import (
    open_psutil,
    open_sockets,
    parse_sockets,
    read_rdma,
)
from traceprof.recording.sampling.sampler import Sampler


def test_samples_carry_the_time_and_a_failing_read_is_dropped():
    calls = []

    def good():
        calls.append("good")
        if len(calls) == 3:
            sampler.stop()
        yield "nic:eth0", "bytes_sent", float(len(calls))

    def bad():
        raise OSError("gone")
        yield

    times = iter(range(1000, 10_000))
    sampler = Sampler([(0.001, good), (0.001, bad)], clock=lambda: next(times))
    thread = threading.Thread(target=sampler.run)
    thread.start()
    thread.join(10)
    assert [sample.value for sample in sampler.samples] == [1, 2, 3]
    assert sampler.samples[0].time_ns == 1000
    assert sampler.samples == sorted(sampler.samples)
    assert sampler.notes == ["sampling of counters stopped: gone"]


def test_a_process_that_has_ended_has_no_memory_to_tell_of(tmp_path):
    pytest.importorskip("psutil")
    with subprocess.Popen(["true"]) as ended:
        (tmp_path / f"process.{ended.pid}.json").write_text("{}")
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # a zombie as yet
        _, (_, read) = open_psutil(tmp_path)
        assert list(read()) == []


def test_a_long_run_is_sampled_ever_more_rarely():
    n_reads = 0

    def read():
        nonlocal n_reads
        n_reads += 1
        if n_reads == 100:
            sampler.stop()
        yield "nic:eth0", "bytes_sent", float(n_reads)
        yield "gpu:0", "pcie_bytes_sent", math.nan if n_reads == 98 else float(n_reads)

    sampler = Sampler([(0.0, read)], max_samples=40)
    sampler.run()
    assert 20 <= len(sampler.samples) < 40
    values = [sample.value for sample in sampler.samples if sample.metric == "bytes_sent"]
    assert values == list(range(1, 100, 8))
    unknown = [sample for sample in sampler.samples if math.isnan(sample.value)]
    assert len(unknown) == 1


def test_nothing_to_read_ends_at_once():
    Sampler([]).run()


def test_rdma_counters_are_words(tmp_path):
    counters = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    (counters / "port_xmit_data").write_text("1000\n")
    (counters / "port_rcv_data").write_text("7\n")
    assert list(read_rdma(tmp_path)) == [
        ("rdma:mlx5_0:1", "bytes_sent", 4000),
        ("rdma:mlx5_0:1", "bytes_received", 28),
    ]


def test_bytes_over_loopback_are_counted_by_interface_and_by_process(tmp_path):
    pytest.importorskip("psutil")
    (tmp_path / f"process.{os.getpid()}.json").write_text("{}")
    network, _ = open_psutil(tmp_path)
    if not open_sockets(tmp_path):
        pytest.skip("the kernel does not report sockets about sockets here")
    (sockets,) = open_sockets(tmp_path)

    def counts(read):
        return {(source, metric): value for source, metric, value in read()}

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as to,
    ):
        before = counts(network[1]) | counts(sockets[1])
        thread = threading.Thread(target=sender.sendall, args=(bytes(1_000_000),))
        thread.start()
        received = 0
        while received < 1_000_000:
            received += len(to.recv(1 << 16))
        thread.join()
        after = counts(network[1]) | counts(sockets[1])
    gained = {key: after[key] - before.get(key, 0) for key in after}
    mine = f"process:{os.getpid()}"
    assert gained[mine, "tcp_bytes_received"] == 1_000_000
    assert gained[mine, "tcp_bytes_sent"] == 1_000_000
    assert gained["nic:lo", "bytes_sent"] >= 1_000_000


def test_what_tcp_sent_again_counts_once():
    info = bytearray(216)
    struct.pack_into("=QQ", info, 120, 1000, 70)  # acknowledged, received
    struct.pack_into("=QQ", info, 200, 1300, 300)  # sent, of it again
    attribute = struct.pack("=HH", 4 + len(info), 2) + info
    body = struct.pack("=68xI", 5) + attribute
    message = struct.pack("=IHHII", 16 + len(body), 20, 0, 1, 0) + body
    counts: dict[int, tuple[int, int]] = {}
    assert parse_sockets(message, counts)
    assert counts == {5: (1000, 70)}


def test_an_error_of_the_kernel_is_an_error():
    with pytest.raises(OSError, match="does not report sockets"):
        parse_sockets(struct.pack("=IHHII", 16, 2, 0, 1, 0), {})
    assert not parse_sockets(struct.pack("=IHHII", 16, 3, 0, 1, 0), {})


def test_memory_and_processor_time_of_a_process(tmp_path):
    pytest.importorskip("psutil")
    (tmp_path / f"process.{os.getpid()}.json").write_text("{}")
    (tmp_path / "process.999999999.json").write_text("{}")  # it has ended
    _, (_, read) = open_psutil(tmp_path)
    values = {(source, metric): value for source, metric, value in read()}
    assert set(values) == {
        (f"process:{os.getpid()}", "cpu_seconds"),
        (f"process:{os.getpid()}", "memory_bytes"),
    }
    assert values[f"process:{os.getpid()}", "memory_bytes"] > 1_000_000
