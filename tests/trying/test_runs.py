"""What is made of the files that the ranks of one run leave."""

import json
import sys

import pytest

from traceprof.render.formatting import sentences
from traceprof.trying.answer import _notes_on_files
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


ENVIRONMENT = """
import json, os, pathlib, sys
names = ("WANDB_MODE", "MLFLOW_TRACKING_URI", "NEPTUNE_MODE")
pathlib.Path(sys.argv[1]).write_text(json.dumps([os.environ.get(name) for name in names]))
"""


@pytest.mark.parametrize(
    ("is_offline", "mode", "expected"),
    [(False, None, None), (True, None, "offline"), (True, "disabled", "disabled")],
)
def test_offline_sets_the_variables_of_the_usual_services(
    tmp_path, monkeypatch, is_offline, mode, expected
):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    said = tmp_path / "said"
    command = [sys.executable, "-c", ENVIRONMENT, str(said)]
    run_once(TryPlan(command, 1, 3, is_offline=is_offline))
    wandb, mlflow, neptune = json.loads(said.read_text())
    assert wandb == expected
    assert (mlflow or "").startswith("file:///") == is_offline
    assert neptune == ("offline" if is_offline else None)


def test_files_of_other_programs_are_not_those_of_the_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere, tmp_path / "temporary"):
        folder.mkdir()
    paths = [here / "model.pt", here / "notes", elsewhere / "log", tmp_path / "temporary" / "x"]
    for path in paths:
        path.write_text("1")
    written = {str(path) for path in (paths[0], *paths[2:], elsewhere / "deleted")}
    notes = list(sentences(list(_notes_on_files(here, ["model.pt", "notes"], written, here))))
    assert notes == [
        "the runs wrote 1 file in this folder: model.pt",
        f"the runs wrote 1 file outside this folder: {elsewhere / 'log'}",
        "1 other file in this folder changed during the runs: notes",
    ]
