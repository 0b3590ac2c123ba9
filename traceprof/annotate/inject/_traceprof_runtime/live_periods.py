"""The sums of the steps of each minute, hour, and day, for the live status.

There are records of the minutes of a week, of the hours of about three months, and of the days of
about three years. Period p of a kind is in slot p % (number of records of this kind). Periods
follow the clock of the start of the process; a clock that is set later does not move them.
"""

import itertools
import operator
import struct

# number of the period since 1970, number of steps, sum, shortest, longest, waiting, data, samples,
# and the sum of typical times: of the steps of each write, their number times their median
PERIOD = struct.Struct("<9q")
PERIODS = ((60, 10080), (3600, 2208), (86400, 1100))  # seconds, number of records
N_BYTES = sum(n_records for _, n_records in PERIODS) * PERIOD.size

_MINUTE_NS = 60000000000
_N_OPEN = 2  # periods of each kind that steps can still be added to
_END, _DURATION, _DATA, _WAIT, _SAMPLES = 2, 3, 4, 8, 9  # places in a step of the live status


class Sums:
    """Adds up steps by period. ``median_ns`` is the median of the last added steps."""

    def __init__(self):
        self.median_ns = 0
        self.sums = {}  # (seconds, number) of a period -> sums
        self._unwritten = set()  # such periods that changed since they were written

    def add(self, steps, offset_ns):
        """Add steps; their ends plus ``offset_ns`` are ns since 1970."""
        parts = {}  # minute -> its steps
        for minute, part in itertools.groupby(
            steps, lambda step: (step[_END] + offset_ns) // _MINUTE_NS
        ):
            parts.setdefault(minute, []).extend(part)
        for minute, part in parts.items():
            durations = sorted(map(operator.itemgetter(_DURATION), part))
            self.median_ns = durations[len(part) // 2]
            new = (
                *(len(part), sum(durations), durations[0], durations[-1]),
                *(sum(map(operator.itemgetter(at), part)) for at in (_WAIT, _DATA, _SAMPLES)),
                len(part) * self.median_ns,
            )
            for seconds, _ in PERIODS:
                period = seconds, minute * 60 // seconds
                before = self.sums.get(period)
                self.sums[period] = new if before is None else _joined(before, new)
                self._unwritten.add(period)

    def records(self):
        """Yield (offset, record) of the periods that changed since `note_written`."""
        for period in self._unwritten:
            yield _offset_of(*period), PERIOD.pack(period[1], *self.sums[period])

    def note_written(self):
        """Note that all records are in the file, and forget the periods that are over."""
        self._unwritten.clear()
        for seconds, _ in PERIODS:
            for period in sorted(key for key in self.sums if key[0] == seconds)[:-_N_OPEN]:
                del self.sums[period]


def _joined(before, new):
    """Return the sums of a period with those of a part of it."""
    joined = list(map(operator.add, before, new))
    joined[2], joined[3] = min(before[2], new[2]), max(before[3], new[3])
    return tuple(joined)


def _offset_of(seconds, number):
    """Return the place of a period behind the steps."""
    offset = 0
    for period_s, n_records in PERIODS:
        if period_s == seconds:
            break
        offset += n_records * PERIOD.size
    return offset + number % n_records * PERIOD.size
