"""Planted troubles with other seeds, sizes, and numbers of ranks than those of the scenarios."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.truth.loops import Pipeline, nothing
from tests.truth.machine import COPY, MS, US, Machine
from tests.truth.scenarios import HEALTHY, Scenario, _embed, _experts, one, parallel, several

__all__ = ["VARIED"]

_LONG: Final = replace(HEALTHY, n_steps=44, n_layers=5, kernel_ns=1_300 * US)


def _paused(length_ns: int, *at: int):
    """Return what stops the host once in each of the steps ``at``."""

    def act(machine: Machine, step: int) -> None:
        if step in at:
            machine.work(length_ns)

    return act


def _loader(pace_ns: int, n_ahead: int):
    """Return what waits for a batch of workers that are at most ``n_ahead`` batches ahead."""
    ready, taken = [0], list[int]()

    def act(machine: Machine, step: int) -> None:
        if not step:
            ready[:], taken[:] = [0], []
        ready.append(max(ready[-1], taken[step - n_ahead] if step >= n_ahead else 0) + pace_ns)
        with machine.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
            machine.work(50 * US)
            machine.now = max(machine.now, ready[-1])
        taken.append(machine.now)

    return act


def _save_slowly(every: int, factor: float):
    """Return an asynchronous checkpoint, whose copies slow the kernels of one step."""

    def act(machine: Machine, step: int) -> None:
        is_saving = step % every == every - 1
        machine.kernel_factor = factor if is_saving else 1.0
        for _ in range(12 if is_saving else 0):
            machine.copy("d2h", 120_000_000, stream=COPY + 1)

    return act


def _seeded(seed: int, **more: object):
    return lambda rank: {"seed": seed, **{k: v(rank) for k, v in more.items()}}  # type: ignore[operator]


def _stage(slow: int, every: int, n_stages: int):
    return lambda rank: Pipeline(
        rank, n_stages, n_steps=30, slow_every=every if rank == slow else 0, slow_factor=1.8
    )


def _behind_loader(every: int, factor: float, n_ahead: int) -> Scenario:
    loop = replace(_LONG, before=_loader(45 * MS, n_ahead))
    return Scenario(
        f"checkpoint_every_{every}_behind_a_loader_{n_ahead}_ahead",
        one(replace(loop, begin=_save_slowly(every, factor)), seed=8),
        ("checkpoint_stalls", "slow_steps"),
        one(loop, seed=8),
        healthy_rules=("input_bound", "exposed_copies"),
    )


VARIED: Final = (
    Scenario(
        "loss_read_of_a_longer_run",
        one(replace(_LONG, is_item_read=True, after=_paused(6 * MS, *range(44))), seed=3),
        ("host_sync",),
        one(replace(_LONG, after=_paused(6 * MS, *range(44))), seed=3),
    ),
    Scenario(
        "loss_read_and_slow_launches_of_a_longer_run",
        one(replace(_LONG, is_item_read=True, begin=_embed), seed=4),
        ("host_sync",),
        one(replace(_LONG, begin=_embed), seed=4),
    ),
    Scenario(
        "all_reduce_exposed_on_6_ranks",
        several(
            lambda _: parallel(6, is_reduce_hidden=False, reduce_ns=5 * MS, n_buckets=7),
            6,
            _seeded(5),
        ),
        ("exposed_communication",),
        several(lambda _: parallel(6, reduce_ns=5 * MS, n_buckets=7), 6, _seeded(5)),
    ),
    Scenario(
        "moe_dispatch_of_a_longer_run",
        one(replace(_LONG, inside=_experts(are_remote=True)), seed=6),
        ("exposed_communication",),
        one(replace(_LONG, inside=_experts(are_remote=False)), seed=6),
    ),
    Scenario(
        "input_wait_of_one_of_6_ranks",
        several(
            lambda r: parallel(6, fetch=_paused(45 * MS, *range(30)) if r == 1 else nothing),
            6,
            _seeded(7),
        ),
        ("straggler",),
        several(lambda _: parallel(6), 6, _seeded(7)),
    ),
    Scenario(
        "slow_rank_of_6",
        several(
            lambda _: parallel(6), 6, _seeded(8, kernel_factor=lambda r: 1.25 if r == 4 else 1.0)
        ),
        ("straggler",),
        several(lambda _: parallel(6), 6, _seeded(8)),
    ),
    Scenario(
        "three_pauses_of_44_steps",
        one(replace(_LONG, after=_paused(250 * MS, 11, 19, 33)), seed=9),
        ("slow_steps",),
        one(_LONG, seed=9),
    ),
    Scenario(
        "two_delays_of_one_of_6_ranks",
        several(
            lambda r: parallel(6, inside=_paused(400 * MS, 7, 21) if r == 3 else nothing),
            6,
            _seeded(10),
        ),
        ("slow_steps",),
        several(lambda _: parallel(6), 6, _seeded(10)),
    ),
    Scenario(
        "first_of_3_stages_slow_every_5th_step",
        several(_stage(0, 5, 3), 3, _seeded(11)),
        ("slow_steps", "straggler"),
        several(_stage(0, 0, 3), 3, _seeded(11)),
        healthy_rules=("pipeline_bubble",),
    ),
    Scenario(
        "last_of_5_stages_slow_every_6th_step",
        several(_stage(4, 6, 5), 5, _seeded(12)),
        ("slow_steps", "straggler"),
        several(_stage(4, 0, 5), 5, _seeded(12)),
        healthy_rules=("pipeline_bubble",),
    ),
    _behind_loader(8, 4.0, 8),
    _behind_loader(9, 9.0, 1),
)
