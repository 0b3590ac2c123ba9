import sys
from pathlib import Path

import numpy as np
import pytest

from traceprof import processes
from traceprof.processes import give_back, usable_bytes, used_memory_bytes


def test_a_container_may_take_less_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_physical_bytes", lambda: 1000)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(processes, "_MEMORY_LIMIT_FILES", (str(limit),))
    assert usable_bytes(2) == 250
    limit.write_text("max\n")
    assert usable_bytes(2) == 250
    limit.write_text("400\n")
    assert usable_bytes(2) == 100
    limit.write_text("9223372036854771712\n")
    assert usable_bytes(1) == 500


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells without a library")
def test_what_a_process_takes_is_without_what_files_hold(tmp_path: Path) -> None:
    n_bytes = 1 << 26
    path = tmp_path / "mapped"
    path.write_bytes(bytes(n_bytes))
    before = used_memory_bytes()
    assert before is not None
    mapped = np.memmap(path, np.int64, "r")
    assert mapped.sum() == 0
    assert (used_memory_bytes() or 0) - before < n_bytes // 2
    own = np.ones(n_bytes // 8)
    assert (used_memory_bytes() or 0) - before > n_bytes // 2
    del own
    give_back()
    assert (used_memory_bytes() or 0) - before < n_bytes // 2


def test_where_nobody_tells_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_STATM_FILE", Path("/nonexistent"))
    assert used_memory_bytes() is None
