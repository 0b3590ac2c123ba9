"""Write what HTA (traceinsight) says of the real Kineto traces: tests/formats/hta_reference.json.

HTA fails with pandas 3, so run this in an environment of its own:

    python -m venv hta && hta/bin/pip install traceinsight==0.6.1 "pandas<3"
    hta/bin/python scripts/oracles/hta_reference.py ../shared/traces
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from importlib.metadata import version
from pathlib import Path

# Without it HTA rounds every time to whole microseconds.
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"

from hta.trace_analysis import TraceAnalysis

OUTPUT = Path(__file__).resolve().parents[2] / "tests" / "formats" / "hta_reference.json"
COLUMNS = {
    "idle_ns": "idle_time(us)",
    "compute_ns": "compute_time(us)",
    "non_compute_ns": "non_compute_time(us)",
    "kernel_ns": "kernel_time(us)",
}


def main(folder: Path) -> None:
    logging.disable(logging.CRITICAL)
    files = {
        str(path.relative_to(folder)): measure(path)
        for path in sorted((folder / "kineto").rglob("*.json*"))
    }
    document = {
        "made by": "scripts/oracles/hta_reference.py",
        "traceinsight": version("traceinsight"),
        "pandas": version("pandas"),
        "options": "HTA_DISABLE_NS_ROUNDING=1, include_last_profiler_step=True",
        "files": files,
    }
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{OUTPUT}: {len(files)} files")


def measure(path: Path) -> dict[str, float | None]:
    # All steps: HTA leaves the last one out by default.
    analysis = TraceAnalysis({0: str(path)}, "", include_last_profiler_step=True)
    breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
    times = {ours: round(float(breakdown[theirs]) * 1000) for ours, theirs in COLUMNS.items()}
    percent = float(overlap["comp_comm_overlap_pctg"])
    return {**times, "overlap_percent": None if math.isnan(percent) else percent}


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
