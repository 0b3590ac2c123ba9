"""Tables of ranks compared with each other, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfRanks(ShownRun):
    """Tables of ranks compared with each other."""

    def ranks(
        self, by: Literal["rank", "straggler", "step", "host", "rack", "clock", "stage"] = "rank"
    ) -> Result:
        """Time breakdown and wait time of each rank.

        Args:
            by: the grouping: "rank", or "straggler" (`stragglers`), "step" (`rank_steps`), "host"
                (`hosts`), "rack" (`racks`), "clock" (`alignment`), "stage" (`pipeline`)

        Table ``ranks``: one row per rank: time breakdown of its GPU, step time, and waiting
            rank: rank
            device: GPU of the rank; all, if the rank uses several GPUs
            step_ns: step time
            compute_ns: time with compute kernels
            exposed_communication_ns: communication time not overlapped with compute
            idle_ns: time without GPU activity
            waited_ns: time spent in shared collectives waiting for the last rank
            last_ratio: share of the shared collectives in which this rank arrived last
            exposed_transfer_ns: copy time not overlapped with kernels
            device_memory_ns: time with only copies inside the GPU
            collectives_count: number of collectives shared with other ranks
            host: host of the rank
            process: process of the rank
        """
        return self._table("ranks", by)

    def stragglers(self) -> Result:
        """Stragglers: which rank the other ranks wait for, in which phase, since when.

        Same as ``ranks(by="straggler")``. Table ``ranks``: one row per rank, sorted by the time
        that it costs the other ranks
            is_straggler: whether the other ranks wait for this rank, and not for its whole stage,
                host, or rack
            cost_ns: mean time that another rank waits because of this rank
            cost_ratio: cost_ns as a share of the window
            last_ratio: share of the collectives in which this rank arrived last
            cause: what the rank spends more time on than the other ranks
            phase: phase in which the rank takes longest compared with the other ranks
            excess_ns: total extra time of the rank
            late_from_ns: when the rank was first late by half of its usual delay
            delays_count: number of collectives that account for 90% of the delay; 1 means late only
                once
            last_count: number of collectives in which this rank arrived last
            median_late_ns: median lateness compared with the median of the other ranks
            device: GPU of the rank, if a process uses several GPUs
            is_within_clock_error: whether different clocks can explain the lateness
            end_skew_ns: difference between the ends of the collectives in which this rank arrived
                last
            attributed_ns: total time that all other ranks waited because of this rank
            cause_ns: total extra time from the cause
            factor: slowdown of the same kernels compared with the other ranks
            stage: pipeline stage of the rank
            as in ``ranks()``: rank, host, process

        Table ``late_groups``: hosts, racks, and stages whose ranks are late as a group, and whether
        they are stragglers
            kind, group, verdict, ranks, late_ranks, cost_ns, cost_ratio, last_rank_delay_ns,
            last_ratio, phase, excess_ns, late_from_ns, waited_ns, end_skew_ns
        """
        return self._table("ranks", "straggler")

    def rank_steps(self) -> Result:
        """Every step of every rank: time without waiting, wait time, lateness; a heat map.

        Same as ``ranks(by="step")``. Table ``rank_steps``: one row per step and rank, sorted by
        step
            step: step number, the same on all ranks
            step_without_waits_ns: step time without exposed waiting
            slower_ratio: step_without_waits_ns above the median rank, as a share of the median
            duration_ns: step time
            waited_ns: time spent in collectives waiting for the last rank
            late_ns: time that the rank delayed the median of the other ranks
            phase: phase in which the rank takes longer by at least 1% of the step
            skew_ns: step time minus the shortest step time of all ranks
            rack: rack of the rank
            as in ``ranks()``: rank, collectives_count, host, process

        Table ``shifts``: ranks that count their steps from a different start
            process, rank, added
        """
        return self._table("ranks", "step")

    def hosts(self) -> Result:
        """Hosts compared, and hosts whose ranks are all late.

        Same as ``ranks(by="host")``. Table ``hosts``: one row per host, sorted by the delay that it
        causes; times are means over its ranks
            host: the host
            ranks (count): number of ranks
            is_straggler: whether the group is late as a whole and the other ranks wait for it
            cost_ns: time that most ranks of the group delayed the median of the other ranks
            cost_ratio: cost_ns as a share of the window
            late_ranks (count): number of ranks of the group that are late
            phase: phase in which the ranks take longer than the median of the other ranks
            step_without_waits_ns: step time without exposed waiting
            waited_ns: time that a rank waited for the last rank in shared collectives
            step_ns: step time
            compute_ns: time with compute kernels, per rank
            exposed_communication_ns: communication time not overlapped with compute
            idle_ns: time without GPU activity, per rank
            last_ratio: share of the collectives with other groups in which this group arrived last
            excess_ns: total extra time of each rank in phase
            late_from_ns: when the group first delayed the other ranks by half of its usual delay
            skew_ns: step time on the slowest rank minus step time on the fastest rank
            exposed_transfer_ns: copy time not overlapped with kernels
            device_memory_ns: time with only copies inside the GPU
            inside_count: number of collectives among ranks of this group only
            inside_ns: duration of these collectives without waiting
            across_count: number of collectives shared with other groups
            across_ns: duration of these collectives without waiting

        Table ``late_groups``: hosts, racks, and stages whose ranks are late as a group, and whether
        they are stragglers
            kind, group, verdict, ranks, late_ranks, cost_ns, cost_ratio, last_rank_delay_ns,
            last_ratio, phase, excess_ns, late_from_ns, waited_ns, end_skew_ns

        Table ``scopes``: shared collectives, by the location of their ranks
            scope, count, total_ns, known_bandwidth_ratio, busbw_bytes_per_s
        """
        return self._table("ranks", "host")

    def racks(self) -> Result:
        """Racks compared, and racks whose hosts are all late.

        Same as ``ranks(by="rack")``. Table ``racks``: one row per rack, sorted by the delay that it
        causes; times are means over its ranks
            rack: the rack
            as in ``hosts()``: ranks (count), is_straggler, cost_ns, cost_ratio, late_ranks (count),
                phase, step_without_waits_ns, waited_ns, step_ns, compute_ns,
                exposed_communication_ns, idle_ns, last_ratio, excess_ns, late_from_ns, skew_ns,
                exposed_transfer_ns, device_memory_ns, inside_count, inside_ns, across_count,
                across_ns

        Table ``late_groups``: hosts, racks, and stages whose ranks are late as a group, and whether
        they are stragglers
            kind, group, verdict, ranks, late_ranks, cost_ns, cost_ratio, last_rank_delay_ns,
            last_ratio, phase, excess_ns, late_from_ns, waited_ns, end_skew_ns

        Table ``scopes``: shared collectives, by the location of their ranks
            scope, count, total_ns, known_bandwidth_ratio, busbw_bytes_per_s
        """
        return self._table("ranks", "rack")

    def alignment(self) -> Result:
        """Clock offsets between ranks, from the ends of shared collectives.

        Same as ``ranks(by="clock")``. Table ``clocks``: one row per rank: its clock compared with
        the clock of the first rank
            rank: rank
            offset_ns: how far this clock is ahead, in the middle of the recording
            drift_ppm: drift of the offset, in parts per million
            residual_ns: median distance between the ends of collectives and the fitted line
            collectives_count: number of shared collectives in the fit
            as in ``stragglers()``: host, process, device
        """
        return self._table("ranks", "clock")

    def pipeline(self) -> Result:
        """Pipeline parallelism: the bubble of each stage.

        Same as ``ranks(by="stage")``. Table ``stages``: one row per stage of each pipeline, over
        the steps in the window
            pipeline: number of the pipeline
            stage: position of the stage in its pipeline
            rank: rank
            bubble_ratio: bubble_ns as a share of span_ns
            ideal_ratio: unavoidable bubble of p stages and m micro-batches, (p-1)/(m+p-1)
            bubble_ns: time spent waiting for other stages, in collectives as well; includes sends
                and receives
            busy_ns: time in compute or in collectives that all ranks have started
            span_ns: total duration of the steps; each lasts while any stage computes it
            step_count: number of steps
            micro_batches: number of tensors that a step sends to a neighboring stage
            process: process
        """
        return self._table("ranks", "stage")
