import numpy as np

from traceprof.recording.outputs import ProfilerClock

EPOCH = 1_700_000_000_000_000_000


def test_without_marks_the_session_start_is_zero():
    clock = ProfilerClock(EPOCH, [])
    assert clock(np.array([EPOCH, EPOCH + 7])).tolist() == [0, 7]


def test_between_marks_the_offset_is_interpolated_and_beyond_them_kept():
    # The clock of the export is 100 ns ahead at first, and 300 ns ahead 1000 ns later.
    clock = ProfilerClock(EPOCH, [(100, EPOCH), (1300, EPOCH + 1000)])
    times = np.array([EPOCH - 50, EPOCH, EPOCH + 500, EPOCH + 1000, EPOCH + 2000])
    assert clock(times).tolist() == [50, 100, 700, 1300, 2300]
