"""The two campaigns: ``scripts/fuzz`` and ``scripts/faults``."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.reliability import page
from tests.reliability.campaign import Tried, run_campaign
from tests.reliability.commands import serving
from tests.reliability.faults import FAULTS
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
    for campaign in (fuzz, faults):
        campaign.add_argument("--write", action="store_true", help="write docs/reliability.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="traceprof-reliability-") as name:
        run = _fuzz if asked.campaign == "fuzz" else _faults
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
    with serving(place.folder) as server:
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


if __name__ == "__main__":
    main()
