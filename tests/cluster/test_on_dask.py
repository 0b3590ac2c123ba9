from pathlib import Path

import pytest

from tests.cluster.conftest import Told
from traceprof.cluster.on_dask import DaskCrew
from traceprof.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")  # those of Dask are its own


def test_a_cluster_says_what_one_process_says(generated: Path, told: Told) -> None:
    names = ("stragglers",)
    assert told(generated, names, scheduler="local", jobs=2) == told(generated, names)


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceprof.cluster.on_dask._WAITS_FOR_SCHEDULER", "200ms")
    crew = DaskCrew("tcp://127.0.0.1:1", 1)
    with pytest.raises(UsageError, match=r"--cluster tcp://127.0.0.1:1: no scheduler of Dask"):
        crew.ask([])
    crew.close()
