"""The library in C against a stand-in for libcupti: nothing hangs, or is lost without a word."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.recording.cupti.libraries import compiler
from traceprof.recording.cupti.records import activity_tables, number_devices
from traceprof.recording.cupti.spool import read_activities, survey
from traceprof.recording.program import INJECT_FOLDER

VERSIONS = (17, 18, 20, 22, 23, 28, 130001, 130101, 130301, 130401, 130500, 140000)
SIZES = {17: 176, 28: 208, 130001: 216, 130101: 224, 130500: 248, 140000: 264}
"""Of a kernel's record; the last version nobody knows yet."""


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read_by_the_steps_of_its_library(program, version):
    left = program(
        """
start()
for i in range(100):
    launch(100, i % 10 == 0)
    finish(100)
cupti.standin_copy(1, c_uint64(4096)); cupti.standin_copy(2, c_uint64(64))
cupti.standin_copy(0, c_uint64(100)); cupti.standin_synchronize()
assert recorder.traceprof_stop() == 0
""",
        STANDIN_VERSION=str(version),
    )
    one, tables = left.one, left.tables
    assert one.version == version
    assert one.steps[10] == SIZES.get(version, one.steps[10])
    assert not one.is_cut
    assert one.losses() == []
    kernels, calls = tables["kernels"], tables["api_calls"]
    assert len(kernels) == 10_000
    assert (kernels["end_ns"] - kernels["start_ns"] == 2500).all()
    assert set(kernels["name"].tolist()) == {
        *("gemm(float*, float*, float*, int)", "void elementwise<float>"),
        *("softmax_warp", "triton_jit_a"),
    }
    assert tables["copies"]["direction"].tolist() == ["h2d", "d2h", "memset"]
    assert tables["copies"]["n_bytes"].tolist() == [4096, 64, 100]
    shapes = tables["kernel_shapes"].row(0)
    assert (shapes["grid_x"], shapes["block_x"], shapes["registers"]) == (132, 256, 32)
    can_choose = version >= 23
    assert one.calls == ("chosen" if can_choose else "runtime")
    tied = np.isin(kernels["correlation"], calls["correlation"])
    if can_choose:
        assert tied.all()
        assert "cudaGetDevice" not in set(calls["name"].tolist())
        assert len(calls) == 10_000 + 4
    else:  # calls of the driver launched a tenth
        assert tied.mean() == 0.9


@pytest.mark.parametrize(
    ("wish", "n_calls", "n_syncs"),
    [("calls=none", 0, 0), ("calls=all,syncs", 21, 1), ("calls=runtime", 16, 0), ("syncs", 11, 1)],
)
def test_what_is_wanted_is_recorded(program, wish, n_calls, n_syncs):
    code = (
        "start(); launch(5); launch(5, 1); cupti.standin_synchronize(); recorder.traceprof_stop()"
    )
    tables = program(code, TRACEPROF_CUPTI=wish).tables
    assert len(tables["kernels"]) == 10
    assert (len(tables["api_calls"]), len(tables["syncs"])) == (n_calls, n_syncs)
    assert tables["syncs"]["kind"].tolist() == ["context"] * n_syncs


def test_kernels_of_a_graph_share_the_call_that_launched_it(program):
    code = "start(); launch(50, 0, 30); finish(); recorder.traceprof_stop()"
    tables = program(code).tables
    kernels = tables["kernels"]
    assert len(kernels) == 1500
    assert len(np.unique(kernels["graph_node"])) == 30
    assert np.unique(kernels["correlation"], return_counts=True)[1].tolist() == [30] * 50
    assert set(tables["api_calls"]["name"].tolist()) == {"cudaGraphLaunch"}


def test_a_graph_may_be_one_piece_of_work(program):
    code = "start(); launch(50, 0, 30); launch(10); finish(); recorder.traceprof_stop()"
    tables = program(code, TRACEPROF_CUPTI="graphs=whole").tables
    kernels = tables["kernels"]
    is_graph = kernels["activity"] == "cuda_graph"
    assert (is_graph.sum(), len(kernels)) == (50, 60)
    assert set(kernels["name"][is_graph].tolist()) == {"CUDA graph 5"}
    assert np.isin(kernels["correlation"], tables["api_calls"]["correlation"]).all()


def test_a_name_is_what_its_pointer_meant_then(program):
    tables = program("""
start()
for _ in range(5):
    launch(4000); finish(); cupti.cuptiActivityFlushAll(0); cupti.standin_rename()
recorder.traceprof_stop()
""").tables
    counts = Counter(tables["kernels"]["name"].tolist())
    assert {name: counts[name] for name in counts if name.startswith("triton")} == {
        f"triton_jit_{one}": 1000 for one in "abcde"
    }


@pytest.mark.parametrize("version", ["22", "130001"])
def test_what_there_was_no_room_for_is_counted(program, version):
    """Before 12.9 CUPTI crashes where it is refused a buffer, as the stand-in does."""
    left = program(
        "start(); launch(20000); finish(); recorder.traceprof_stop()",
        STANDIN_VERSION=version,
        TRACEPROF_CUPTI="calls=none,memory=2",
    )
    n_kept, one = len(left.tables["kernels"]), left.one
    assert 0 < n_kept < 20_000
    assert len(one.losses()) == 1
    if version == "22":
        assert (one.n_dropped, one.unwritten_bytes) == (0, (20_000 - n_kept) * 208)
        assert "were not kept" in one.losses()[0]
    else:
        assert n_kept + one.n_dropped == 20_000
        assert f"CUPTI dropped {20_000 - n_kept} records" in one.losses()[0]


def test_a_kernel_that_still_runs_in_the_end_is_lost_and_said(program):
    left = program("start(); launch(900); finish(600); recorder.traceprof_stop()")
    assert len(left.tables["kernels"]) == 600
    assert left.one.n_lost == 300
    assert "300 kernels and copies" in left.one.losses()[0]


def test_graphs_that_exhaust_cupti_lose_times_and_that_is_said(program):
    code = "start(); launch(100, 0, 20); finish(); recorder.traceprof_stop()"
    left = program(code, STANDIN_ZERO_FROM="1500")
    assert len(left.tables["kernels"]) == 1500
    assert left.one.n_lost == 500
    assert left.one.n_graph_kernels == 2000


def test_more_kernels_of_graphs_than_cupti_survives_are_warned_of(program):
    one = program("start(); launch(1); finish(); recorder.traceprof_stop()").one
    one.n_graph_kernels = 26_000_000
    assert "above 25 million" in one.losses()[0]


def test_a_worker_that_is_late_is_waited_for(program):
    left = program(
        "start(); launch(30000); finish(); time.sleep(0.02); recorder.traceprof_stop()",
        STANDIN_SLOW_US="30000",
    )
    assert len(left.tables["kernels"]) == 30_000
    assert left.one.losses() == []


def test_what_is_complete_is_written_each_second(program):
    """Whoever is killed loses no more than that; what is torn is left out."""
    left = program("""
start(); launch(3000); finish(); written(3000 * 256); launch(1000); os._exit(0)
""")
    assert left.one.is_cut
    assert len(left.tables["kernels"]) == 3000
    assert left.one.calls == "chosen"


def test_a_torn_file_is_read_as_far_as_it_goes(program, tmp_path):
    one = program("start(); launch(60000); finish(); recorder.traceprof_stop()").one
    whole = one.path.read_bytes()
    last = 0
    for size in (0, 17, 64, len(whole) // 3, len(whole) * 2 // 3, len(whole) - 1):
        one.path.write_bytes(whole[:size])
        torn = survey(one.pid, one.path)
        assert torn.is_cut
        assert torn.record_bytes >= last
        last = torn.record_bytes
    one.path.write_bytes(whole[: len(whole) // 2] + os.urandom(999))
    assert survey(one.pid, one.path).record_bytes <= len(whole) // 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=9)), max_size=6))
def test_a_damaged_file_gives_what_can_be_read(small_file, changes):
    path = small_file.with_name("damaged")
    damaged = bytearray(small_file.read_bytes())
    for place, bytes_ in changes:
        at = place % len(damaged)
        damaged[at : at + len(bytes_)] = bytes_
    path.write_bytes(damaged)
    one = survey(1, path)
    assert all(isinstance(loss, str) for loss in one.losses())
    numbers, _ = number_devices([one])
    for tables in activity_tables(one, numbers, lambda times: times, str):
        for table in tables.values():
            assert (table["end_ns"] >= table["start_ns"]).all()


@pytest.fixture(scope="module")
def small_file(libraries, tmp_path_factory):
    """What a short program left, with every kind of chunk."""
    folder = tmp_path_factory.mktemp("small")
    code = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0)\n"
    code += "cuda.standin_launch(5, 1, 0); cuda.standin_launch(1, 0, 3)\n"
    code += "cuda.standin_copy(1, 64); cuda.standin_copy(0, 64); cuda.standin_synchronize()"
    environment = {**os.environ, **libraries.environment, "TRACEPROF_DIR": str(folder)}
    environment |= {"CUDA_INJECTION64_PATH": str(libraries.recorder), "TRACEPROF_CUPTI": "syncs"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    (path,) = folder.glob("cupti.*.spool")
    return path


def test_a_damaged_number_of_a_device_takes_no_memory(small_file):
    one, number = survey(1, small_file), 0xFFFF_FFF0
    (tables,) = activity_tables(one, {(1, 0): 7, (1, number): number}, lambda times: times, str)
    assert set(tables["kernels"]["device"].tolist()) == {7}


def test_a_forked_process_writes_nothing_and_does_not_hang(program):
    left = program("""
start(); launch(10); finish()
child = os.fork()
if child == 0:
    launch(5)
    os._exit(0 if recorder.traceprof_stop() == 1 and recorder.traceprof_start() == 1 else 9)
assert os.waitpid(child, 0)[1] == 0
launch(10); finish(); recorder.traceprof_stop()
""")
    assert len(left.tables["kernels"]) == 20


def test_a_process_that_was_forked_before_records_itself(program):
    left = program("""
child = os.fork()
start(); launch(10 if child else 20); finish(); recorder.traceprof_stop()
if child: os.waitpid(child, 0)
""")
    assert sorted(one.record_bytes for one in left.activities) == [10 * 256, 20 * 256]


def test_a_buffer_of_another_is_left_alone(program):
    left = program("""
start(); launch(10); finish(); cupti.standin_foreign_buffer(); launch(10); finish()
recorder.traceprof_stop()
""")
    assert len(left.tables["kernels"]) == 20


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"STANDIN_BUSY": "1"}, "CUPTI is in use by CUPTI for the monitor"),
        (
            {"STANDIN_BUSY": "1", "STANDIN_VERSION": "17"},
            "in use by another profiler in the process",
        ),
        ({"STANDIN_BUSY": "1", "STANDIN_VERSION": "28", "NSYS_PROFILING_SESSION_ID": "7"}, "nsys"),
        (
            {"STANDIN_BUSY": "2"},
            "CUPTI for the monitor uses CUPTI in an incompatible way (code 14)",
        ),
        ({"STANDIN_NO_DRIVER": "15"}, "code 15 CUPTI_ERROR_NOT_INITIALIZED"),
        ({"STANDIN_NO_DRIVER": "999"}, "code 999"),
    ],
)
def test_it_steps_back_and_says_why(program, environment, why):
    left = program(
        """
recorder.traceprof_plan(1); assert recorder.traceprof_start() == 1
print(recorder.traceprof_why().decode()); launch(10); finish(); cupti.cuptiActivityFlushAll(1)
assert recorder.traceprof_stop() == 1
""",
        **environment,
    )
    assert why in left.printed
    assert left.one.notes["why"] == left.printed.strip()
    assert left.one.record_bytes == 0


def test_threads_have_buffers_of_their_own(program):
    left = program("""
start()
def work():
    for _ in range(40):
        launch(50); finish(50)
threads = [threading.Thread(target=work) for _ in range(6)]
[one.start() for one in threads]; [one.join() for one in threads]
finish(); recorder.traceprof_stop()
""")
    tables = left.tables
    assert len(tables["kernels"]) == len(tables["api_calls"]) == 12_000
    assert len(np.unique(tables["api_calls"]["thread"])) == 6


def test_only_what_is_let_through_is_recorded(program):
    left = program("""
recorder.traceprof_plan(2); assert recorder.traceprof_start() == 0
launch(10); finish()
recorder.traceprof_capture(1); launch(20); finish(); recorder.traceprof_capture(0)
launch(40); finish()
recorder.traceprof_capture(1); launch(30); finish(); recorder.traceprof_capture(0)
recorder.traceprof_stop()
""")
    assert len(left.tables["kernels"]) == 50


def test_a_file_that_may_grow_no_more_is_ended_with_a_word(program):
    left = program(
        "start(); launch(60000); finish(); time.sleep(0.1); recorder.traceprof_stop()",
        TRACEPROF_MAX_BYTES="3000000",
    )
    assert 3_000_000 < left.one.record_bytes < 5_000_000
    assert left.one.unwritten_bytes > 0
    assert "were not recorded" in left.printed
    assert len(left.one.losses()) == 1


def test_a_disk_that_is_full_leaves_what_was_whole_and_a_word(program):
    left = program("""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
start(); launch(60000); finish(); time.sleep(0.1); recorder.traceprof_stop()
""")
    assert 0 < left.one.record_bytes < 3 << 20
    assert len(left.tables["kernels"]) == left.one.record_bytes // 256
    assert "were not recorded" in left.printed
    assert "full disk" in left.one.losses()[0]
    assert not left.one.is_cut


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_program_that_closes_its_file_has_nothing_written_into_its_own(
    program, tmp_path, is_removed
):
    unlink = "for path in glob.glob(os.environ['TRACEPROF_DIR'] + '/cupti.*'): os.unlink(path)"
    left = program(f"""
start(); launch(200); finish(); recorder.traceprof_capture(0)
{unlink if is_removed else ""}
os.closerange(3, 256)
files = [os.open(f"{tmp_path}/mine{{k}}", os.O_RDWR | os.O_CREAT) for k in range(12)]
recorder.traceprof_capture(1); launch(300); finish(); recorder.traceprof_stop()
for file in files: os.write(file, b"mine")
""")
    assert {(tmp_path / f"mine{k}").read_bytes() for k in range(12)} == {b"mine"}
    if is_removed:
        assert "bytes of GPU activity of process" in left.printed
        assert left.activities == []
    else:
        assert len(left.tables["kernels"]) == 500


def test_a_program_that_replaces_itself_leaves_a_file_for_each(program):
    left = program(f"""
sys.path.insert(0, {str(INJECT_FOLDER)!r})
from _traceprof_runtime.identity import identity  # its files are named as those of hooks
if len(sys.argv) > 3: print(identity())
start(); launch(7); finish(); recorder.traceprof_stop()
if len(sys.argv) < 4:
    os.execv(sys.executable, [*sys.orig_argv, "again"])
""")
    first, second = left.activities
    assert (first.pid, first.program, second.program) == (second.pid, 0, 1)
    names = [f"cupti.{left.printed.strip()}.{number}.spool" for number in range(2)]
    assert [one.path.name for one in left.activities] == names
    tables = [next(activity_tables(one, {}, lambda times: times, str)) for one in left.activities]
    calls = [set(part["kernels"]["correlation"].tolist()) for part in tables]
    assert len(calls[0] | calls[1]) == 14
    for part in tables:
        assert set(part["kernels"]["correlation"]) == set(part["api_calls"]["correlation"])


def test_a_program_that_is_no_python_is_recorded_from_its_first_use_of_cuda(libraries, tmp_path):
    """The driver loads the library; the program's own end is enough."""
    source = tmp_path / "program.c"
    source.write_text("""
int cuInit(unsigned);
void standin_launch(int, int, int), standin_synchronize(void);
int main(void) {
    cuInit(0);
    standin_launch(300, 1, 0);
    standin_synchronize();
    return 0;
}
""")
    built = [compiler(), "-o", tmp_path / "program", source, libraries.standin]
    subprocess.run(built, check=True)
    environment = {**os.environ, **libraries.environment, "TRACEPROF_DIR": str(tmp_path)}
    environment["CUDA_INJECTION64_PATH"] = str(libraries.recorder)
    subprocess.run([tmp_path / "program"], env=environment, check=True)
    (path,) = tmp_path.glob("cupti.*.spool")
    one = survey(1, path)
    assert not one.is_cut
    assert one.record_bytes == 300 * 256 + 40
    assert [facts.name for facts in one.devices] == ["Stand-in 80GB"]
    assert one.devices[0].compute_capability == 90
    assert one.devices[0].uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_memory_is_bounded_however_long_it_runs(program):
    """Of the program while it is recorded, and of the tables that its records become."""
    left = program("""
import resource
def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
start()
cupti.standin_run(c_long(20), 0); written(1 << 20); before = peak_mb()
for n in range(2, 12):
    cupti.standin_run(c_long(20), 0); written(n * 20_000 * 256 - (4 << 20))
print(peak_mb() - before)
recorder.traceprof_stop()
""")
    assert float(left.printed) < 30
    assert left.one.losses() == []
    assert left.one.record_bytes == 220_000 * 256
    blocks = list(activity_tables(left.one, {}, lambda times: times, str))
    sizes = [len(block["kernels"]) for block in blocks]
    assert sum(sizes) == 220_000
    assert max(sizes) <= 16 * (1 << 20) // 256


_FIND = """
import ctypes, sys
[ctypes.CDLL(path) for path in sys.argv[2:]]
recorder = ctypes.CDLL(sys.argv[1])
recorder.traceprof_plan(1)
assert recorder.traceprof_start() == 0 == recorder.traceprof_stop()
"""


@pytest.mark.parametrize("place", ["lib", "cuda_cupti/lib", "extras/CUPTI/lib64"])
def test_libcupti_is_found_where_the_program_has_its_libraries(libraries, tmp_path, place):
    """Beside the runtime of CUDA that is loaded, or where its packages and installers put it."""
    runtime = tmp_path / ("cuda_runtime/lib" if "cupti/lib" in place else "lib") / "libcudart.so.13"
    cupti = tmp_path / place / "libcupti.so.13"
    for path in (runtime, cupti):
        path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(libraries.standin, cupti)
    subprocess.run([compiler(), "-shared", "-x", "c", "/dev/null", "-o", runtime], check=True)
    command = [sys.executable, "-c", _FIND, libraries.recorder, runtime]
    environment = {**os.environ, "TRACEPROF_DIR": str(tmp_path), "TRACEPROF_CUPTI": "syncs"}
    subprocess.run(command, env=environment, check=True)
    (one,) = read_activities(tmp_path)
    assert Path(one.notes["library"]).resolve() == cupti


def test_libcupti_of_the_programs_python_is_offered(libraries, tmp_path):
    cupti = tmp_path / "site" / "nvidia" / "cu13" / "lib" / "libcupti.so.13"
    cupti.parent.mkdir(parents=True)
    shutil.copy(libraries.standin, cupti)
    environment = {**os.environ, "TRACEPROF_DIR": str(tmp_path), "TRACEPROF_CUPTI": "syncs"}
    environment["PYTHONPATH"] = os.pathsep.join([str(INJECT_FOLDER), str(tmp_path / "site")])
    command = [sys.executable, "-c", _FIND, libraries.recorder]
    subprocess.run(command, env=environment, check=True)
    (one,) = read_activities(tmp_path)
    assert one.notes["library"] == str(cupti)
