"""The campaigns: ``scripts/fuzz``, ``scripts/faults`` and ``scripts/bounds``."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.reliability import page
from tests.reliability.bounds import (
    GROWN,
    corpus_files,
    measure_files,
    measure_shape,
    traces,
)
from tests.reliability.campaign import Tried, run_campaign
from tests.reliability.commands import serving
from tests.reliability.growth import measure_patterns
from tests.reliability.machine import loaded_before
from tests.reliability.machine_faults import FAULTS
from tests.reliability.pairs import pairs_of, small_traces, try_pairs
from tests.reliability.patterns import all_patterns
from tests.reliability.shapes import SHAPES
from tests.reliability.snapshot import is_copy, run_on_copy
from tests.reliability.tally import Costs, Growth, Patterns
from tests.reliability.worker import answer
from tests.reliability.workplace import Workplace


def main() -> None:
    """Run a campaign, print what it found, end with 1 if that is anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="campaign", required=True)
    fuzz = kinds.add_parser("fuzz")
    fuzz.add_argument("--count", type=int, default=20_000, help="inputs in all")
    fuzz.add_argument("--seconds", type=float, help="stop after so long")
    fuzz.add_argument("--seed", type=int, default=1)
    fuzz.add_argument("--workers", type=int, default=2)
    fuzz.add_argument("--class", dest="classes", action="append", default=[], metavar="NAME")
    fuzz.add_argument("--one", metavar="NUMBER", type=int, help="this input of --class alone")
    faults = kinds.add_parser("faults")
    faults.add_argument("--count", type=int, default=100, help="faults of each kind")
    faults.add_argument("--seed", type=int, default=1)
    faults.add_argument("--only", action="append", default=[], metavar="NAME")
    bounds = kinds.add_parser("bounds")
    bounds.add_argument("--size", type=int, default=10_000, help="events of the larger shapes")
    bounds.add_argument("--pairs", type=int, default=10**6, help="pairs of traces; default: all")
    bounds.add_argument("--questions", type=int, default=12, help="asked of each file, in turn")
    bounds.add_argument("--seed", type=int, default=1)
    bounds.add_argument("--only", choices=("files", "shapes", "pairs", "patterns"), action="append")
    bounds.add_argument("--pumps", type=int, default=10_000, help="texts for each pattern")
    bounds.add_argument("--shape", action="append", default=[], metavar="NAME")
    bounds.add_argument("--room", action="append", default=[], metavar="NAME")
    for campaign in (fuzz, faults, bounds):
        campaign.add_argument("--write", action="store_true", help="write docs/reliability.md")
    asked = parser.parse_args()
    if not is_copy() and getattr(asked, "one", None) is None:
        raise SystemExit(run_on_copy(sys.argv[1:]))
    with tempfile.TemporaryDirectory(prefix="traceprof-reliability-") as name:
        run = {"fuzz": _fuzz, "faults": _faults, "bounds": _bounds}[asked.campaign]
        raise SystemExit(run(asked, Path(name)))


def _fuzz(asked: argparse.Namespace, folder: Path) -> int:
    if asked.one is not None:
        kept = Path("build", "fuzz")
        print(answer(kept, asked.seed, asked.classes[0], asked.one))
        print(f"its files: {kept}")
        return 0
    # Each worker has its own part of the numbers of every class.
    count = -(-asked.count // asked.workers)
    with ThreadPoolExecutor(asked.workers) as pool:
        running = [
            pool.submit(
                run_campaign,
                folder / f"worker{number}",
                asked.seed,
                count,
                first=number * 1_000_000,
                classes=asked.classes,
                seconds=asked.seconds,
                say=lambda line: print(line, flush=True),
            )
            for number in range(asked.workers)
        ]
        parts = [one.result() for one in running]
    tried = [_together(same) for same in zip(*parts, strict=True)]
    print("\n".join(page.rows_of_inputs(tried)))
    if asked.write:
        page.keep_inputs(tried, asked.seed)
    return int(any(one.defects for one in tried))


def _together(parts: tuple[Tried, ...]) -> Tried:
    whole = Tried(parts[0].name)
    for part in parts:
        whole.verdicts += part.verdicts
        whole.ways |= part.ways
        whole.defects += part.defects
    return whole


def _faults(asked: argparse.Namespace, folder: Path) -> int:
    folder.chmod(0o755)  # some commands run as another user
    place = Workplace(folder / "place")
    tallies = []
    with serving(place.folder, loaded_before()) as server:
        for inject in FAULTS:
            if asked.only and inject.__name__ not in asked.only:
                continue
            rng = random.Random(f"{asked.seed} {inject.__name__}")
            tallies.append(inject(place, server, rng, asked.count))
            print(page.row_of_faults(tallies[-1]), flush=True)
            for line in tallies[-1].lost:
                print(f"    {line}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    if asked.write:
        page.keep_faults(tallies, asked.seed)
    return int(any(one.n_lost for one in tallies))


def _bounds(asked: argparse.Namespace, folder: Path) -> int:
    parts = asked.only or ("files", "shapes", "pairs", "patterns")
    beyond: list[str] = []
    with serving(folder / "place") as server:
        if "files" in parts:
            files = [*corpus_files(folder / "corpus"), *traces()]
            costs = measure_files(server, files, asked.questions)
            beyond += _told(page.rows_of_costs(costs), costs)
            if asked.write:
                page.keep_costs(costs)
        if "shapes" in parts:
            shapes = [one for one in SHAPES if not asked.shape or one.__name__ in asked.shape]
            growths = []
            for shape in shapes:
                growths.append(measure_shape(server, shape, asked.size // GROWN))
                beyond += _told([page.row_of_growth(growths[-1])], growths[-1:])
            if asked.write:
                page.keep_growths(growths)
    if "pairs" in parts:
        rng = random.Random(asked.seed)
        chosen = pairs_of(small_traces(traces(), folder / "pieces"), rng, asked.pairs)
        tally = try_pairs(chosen, folder / "out", os.cpu_count() or 1)
        beyond += tally.defects
        print(page.told_of_pairs(tally), *tally.defects, sep="\n", flush=True)
        if asked.write:
            page.keep_pairs(tally, asked.seed)
    if "patterns" in parts:
        chosen_patterns = [one for one in all_patterns() if one.room in (asked.room or (one.room,))]
        patterns = measure_patterns(chosen_patterns, asked.pumps)
        beyond += _told(page.rows_of_patterns(patterns), patterns)
        if asked.write:
            page.keep_patterns(patterns)
    return int(bool(beyond))


def _told(rows: Sequence[str], counted: Sequence[Costs | Growth | Patterns]) -> list[str]:
    beyond = [f"{one.name}: {text}" for one in counted for text in one.beyond]
    print(*rows, *(f"    {text}" for text in beyond), sep="\n", flush=True)
    return beyond


if __name__ == "__main__":
    main()
