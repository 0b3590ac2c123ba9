"""The published false alarm rate of `try`: a short run of the simulation, with fixed seeds."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "false_alarms"


def test_changes_without_effect_are_rarely_claimed_and_large_ones_are_found():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--experiments", "10"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()
    ][2:]
    assert len(rows) == 7
    n_changes = sum(int(row[1]) for row in rows)
    claimed = sum(int(row[1]) * float(row[2].rstrip("%")) / 100 for row in rows)
    assert n_changes == 350
    assert claimed <= 0.05 * n_changes
    found = {row[0]: float(row[4].rstrip("%")) for row in rows}
    assert found["idle, runs differ by 2%"] == found["idle, runs differ by 5%"] == 100
