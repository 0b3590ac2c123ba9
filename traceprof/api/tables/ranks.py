"""Tables of ranks side by side, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfRanks(ShownRun):
    """Tables of ranks side by side."""

    def ranks(
        self, by: Literal["rank", "straggler", "step", "host", "rack", "clock", "stage"] = "rank"
    ) -> Result:
        """The ranks side by side: parts of their time, and waiting.

        Args:
            by: what the rows are: "rank", or as in "straggler" (`stragglers`), "step"
                (`rank_steps`), "host" (`hosts`), "rack" (`racks`), "clock" (`alignment`), "stage"
                (`pipeline`)

        Table ``ranks``: one row per rank: the parts of its device's time, its steps, its share in
        the waiting
            rank: the rank
            device: its device; all, where it has several
            step_ns: the step time of the rank
            compute_ns: when compute kernels ran
            exposed_communication_ns: communication that no compute hid
            idle_ns: when nothing ran
            waited_ns: in shared collectives, for the last rank to come
            last_ratio: the share of them to which it came last itself
            exposed_transfer_ns: copies that no kernel hid
            device_memory_ns: when only copies inside the device ran
            collectives_count: the collectives that it shares
            host: its host
            process: its process
        """
        return self._table("ranks", by)

    def stragglers(self) -> Result:
        """Ranks that the others wait for: in which phase, since when.

        The same as ``ranks(by="straggler")``. Table ``ranks``: one row per rank, by what it costs
        the others, the most first
            is_straggler: whether the others wait for it, and not its host
            cost_ns: how long another rank waits because of it, on average
            cost_ratio: that, of the window
            last_ratio: the share of the collectives it was last to
            cause: what a straggler does more of than the others
            phase: where it takes the longest beyond the other ranks
            excess_ns: by how much, in all
            since_ns: when it first was late by half of what is usual
            delays_count: in how many collectives nine tenths of that arise; 1: it was late once
            last_count: to how many collectives it came last
            median_late_ns: its lateness beyond the median of the others
            device: its device, where a process drives several
            is_unclear: whether clocks that differ may account for it
            ends_ns: how much the ends differ of those it was last to
            charged_ns: what all others waited because of it, together
            cause_ns: how much more of its cause it does, in all
            factor: how many times as long the same kernels take
            stage: its stage, in a pipeline
            as in ``ranks()``: rank, host, process

        Table ``late_groups``: the hosts, racks and stages that seem late as a whole, and what to
        make of it
            kind, group, verdict, ranks, late_ranks, cost_ns, cost_ratio, held_up_ns, last_ratio,
            phase, excess_ns, since_ns, waited_ns, ends_ns
        """
        return self._table("ranks", "straggler")

    def rank_steps(self) -> Result:
        """Every step of every rank: own time, waiting, lateness; a heat map.

        The same as ``ranks(by="step")``. Table ``rank_steps``: one row per step and rank, step by
        step
            rank: the rank
            step: the number of the step, the same on all ranks
            own_ns: the step without the waiting that no compute hid
            slower_ratio: own_ns beyond the median rank's, of that
            duration_ns: the length of the step
            waited_ns: in its collectives, for the last rank to come
            late_ns: how long it held up the median of the others
            phase: where it takes at least 1 % of the step longer
            skew_ns: its duration beyond the shortest of the ranks
            collectives_count: its collectives that others share
            host: the host of the rank
            rack: the rack of the rank
            process: the process of the rank

        Table ``shifts``: the ranks whose steps are counted from another beginning
            process, rank, added
        """
        return self._table("ranks", "step")

    def hosts(self) -> Result:
        """The hosts side by side, and which is late as a whole.

        The same as ``ranks(by="host")``. Table ``hosts``: one row per host, those that hold the
        others up first; times are means of its ranks
            host: the host
            ranks (count): its ranks
            is_straggler: whether it is late as a whole, and the others wait for it
            cost_ns: how long most of its ranks held up the median rank of the others
            cost_ratio: that, of the window
            late_ranks (count): how many of its ranks come late
            phase: where its ranks take longer than the median of the others
            own_ns: a step without exposed waiting
            waited_ns: what a rank waited in shared collectives for the last
            step_ns: a step
            compute_ns: when compute kernels ran, of a rank
            exposed_communication_ns: communication that no compute hid
            idle_ns: when nothing ran on a rank's device
            last_ratio: the share of the collectives with others it was last to
            excess_ns: how much longer each of its ranks takes in phase, in all
            since_ns: when it first held the others up by half of what is usual
            skew_ns: a step on its slowest rank beyond that on its fastest
            exposed_transfer_ns: copies that no kernel hid
            device_memory_ns: when only copies inside the device ran
            inside_count: collectives that only its ranks take part in
            inside_ns: their time without waiting
            across_count: collectives that it shares with other groups
            across_ns: their time without waiting

        Table ``late_groups``: the hosts, racks and stages that seem late as a whole, and what to
        make of it
            kind, group, verdict, ranks, late_ranks, cost_ns, cost_ratio, held_up_ns, last_ratio,
            phase, excess_ns, since_ns, waited_ns, ends_ns

        Table ``scopes``: the shared collectives by where their ranks are
            scope, count, total_ns, sized_ratio, busbw_bytes_per_s
        """
        return self._table("ranks", "host")

    def racks(self) -> Result:
        """The racks side by side, and which is late as a whole.

        The same as ``ranks(by="rack")``. Table ``racks``: one row per rack, those that hold the
        others up first; times are means of its ranks
            rack: the rack
            as in ``hosts()``: ranks (count), is_straggler, cost_ns, cost_ratio, late_ranks (count),
                phase, own_ns, waited_ns, step_ns, compute_ns, exposed_communication_ns, idle_ns,
                last_ratio, excess_ns, since_ns, skew_ns, exposed_transfer_ns, device_memory_ns,
                inside_count, inside_ns, across_count, across_ns

        Table ``late_groups``: the hosts, racks and stages that seem late as a whole, and what to
        make of it
            kind, group, verdict, ranks, late_ranks, cost_ns, cost_ratio, held_up_ns, last_ratio,
            phase, excess_ns, since_ns, waited_ns, ends_ns

        Table ``scopes``: the shared collectives by where their ranks are
            scope, count, total_ns, sized_ratio, busbw_bytes_per_s
        """
        return self._table("ranks", "rack")

    def alignment(self) -> Result:
        """The clocks of the ranks, by the ends of shared collectives.

        The same as ``ranks(by="clock")``. Table ``clocks``: one row per rank: its clock against
        that of the first rank
            rank: the rank
            offset_ns: how much the clock is ahead, in the middle
            drift_ppm: how fast that grows, in parts per million
            residual_ns: the median distance of the ends from that line
            collectives_count: over how many shared collectives
            host: the host of the rank
            process: the process of the rank
            device: its device, where a process drives several
        """
        return self._table("ranks", "clock")

    def pipeline(self) -> Result:
        """Pipeline parallelism: the bubble of each stage.

        The same as ``ranks(by="stage")``. Table ``stages``: one row per stage of each pipeline,
        over the steps of the window
            pipeline: which of the pipelines
            stage: its place in the pipeline
            rank: its rank
            bubble_ratio: bubble_ns of span_ns
            ideal_ratio: what p stages and m micro-batches cannot avoid, (p-1)/(m+p-1)
            bubble_ns: waiting for others, also in collectives; sends and receives included
            busy_ns: when it computes, or takes part in collectives that all ranks have begun
            span_ns: the steps, each while any stage of it computes
            step_count: over how many steps
            micro_batches: tensors that a step sends to a neighbour
            process: its process
        """
        return self._table("ranks", "stage")
