"""What is made of the files that the ranks of one run leave."""

import sys

import pytest

from traceprof.trying.runs import TryPlan, run_once

RANKS = """
import json, os, pathlib
folder = pathlib.Path(os.environ["TRACEPROF_DIR"])
(folder / "process.1.json").write_text("{}")
for pid, step_s, loss in ((9999, [1.0, 3.0], 0.5), (10001, [3.0, 5.0, 7.0], 1.5)):
    told = {"step_s": step_s, "losses": [[5, loss], [6, loss + 1]], "is_whole": True}
    told |= {"steps_count": 7, "peak_bytes": pid, "facts": {"threads": 1}}
    (folder / f"try.{pid}.json").write_text(json.dumps(told))
"""


def test_times_and_losses_are_means_of_all_ranks_whatever_their_process_ids():
    """Of one rank, found by the order of ids, they would be another rank's in the next run."""
    for program in (RANKS, RANKS.replace("10001", "100")):
        plan = TryPlan([sys.executable, "-c", program], 1, 3)
        found = run_once(plan)
        assert found.failure == "", found.reason
        assert found.step_ns.tolist() == [2e9, 4e9]
        assert found.losses == {5: 1.0, 6: pytest.approx(2.0)}
        assert found.ranks_count == 2
