"""Tables of what devices and ranks send one another, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfTraffic(ShownRun):
    """Tables of what devices and ranks send one another."""

    def copies(self, by: Literal["direction", "size", "time"] = "direction") -> Result:
        """Copies by direction, with bytes and GB/s.

        Args:
            by: what the rows are: "direction", or as in "size" (`transfers`), "time" (`bandwidth`)

        Table ``copies``: one row per device, direction and kind of memory at both ends, by total
        time
            device: the number of the device in the run
            direction: from where to where; or memset
            src_kind: the memory that was read
            dst_kind: the memory that was written
            count: how many
            total_ns: the durations of all added up
            busy_ns: when any of them ran: copies may run side by side
            size_bytes: what they moved
            rate_bytes_per_s: size_bytes over total_ns, that is, of one copy at a time
            share_ratio: total_ns of the sum over all rows
            mean_ns: the mean duration
            median_ns: the median duration
            min_ns: the shortest duration
            max_ns: the longest duration
        """
        return self._table("copies", by)

    def transfers(self) -> Result:
        """Copies between host and devices: GB/s by size against the link's peak.

        The same as ``copies(by="size")``. Table ``transfers``: one row per device, route, kind of
        memory and class of sizes ("all" first), the longest first
            device: the device
            route: h2d, d2h, or from which device to which (p2p 0→3)
            memory: the kind of memory at the host's end, or of a peer copy's source
            sizes: the class of sizes (K and M are binary)
            count: how many copies
            size_bytes: their bytes
            total_ns: their times added up
            busy_ns: when at least one ran
            exposed_ns: of that, what no kernel of the device hides
            overhead_ns: beyond what the bytes take at the rate of the fastest class of the route
            rate_bytes_per_s: bytes over total time: of one copy
            peak_bytes_per_s: the peak of the link in this direction
            peak_ratio: the rate's share of it; not cut off at 1

        Table ``memory``: one row per direction and kind of memory, over all devices
            direction, memory, count, size_bytes, total_ns, large_bytes, large_ns, rate_bytes_per_s,
            large_rate_bytes_per_s

        Table ``links``: one row per device and route: the link that rates are held against
            device, route, peak_bytes_per_s, link, source
        """
        return self._table("copies", "size")

    def bandwidth(self) -> Result:
        """Bandwidth of copies over time, by device and route.

        The same as ``copies(by="time")``. Table ``slices``: one row per device, route and hundredth
        of the window in which something moved, in the order of time
            device: the device
            route: the direction, or from which device to which (p2p 0→3)
            at_ns: where the slice begins
            duration_ns: how long the slice is
            size_bytes: what moved in it; slices add up to all bytes
            busy_ns: when at least one copy ran in it
            rate_bytes_per_s: bytes over the whole slice
            peak_bytes_per_s: the peak of the link; inside a device half of the memory's, which is
                read and written
            peak_ratio: the rate's share of the peak
        """
        return self._table("copies", "time")

    def collectives(
        self, by: Literal["operation", "event", "caller", "bucket", "rank"] = "operation"
    ) -> Result:
        """Collectives by operation and size: time, algbw, busbw, exposed.

        Args:
            by: what the rows are: "operation", or as in "event" (`collective_events`), "caller"
                (`callers`), "bucket" (`buckets`), "rank" (`shared`)

        Table ``classes``: one row per operation, group and class of message sizes, by total time
        over all ranks. Bandwidths are as nccl-tests define them, sizes over times of all together:
        of collectives that ranks share the shortest time of the ranks, which holds no waiting, else
        the time as it is; none where sizes, times or the number of ranks are not known
            op: the operation
            sizes: the class of what a rank hands in (K and M are binary)
            count: how many, of all ranks
            size_bytes: what the ranks hand in, none if one is not known
            total_ns: their times added up
            busbw_bytes_per_s: what each link must carry
            peak_ratio: busbw of the link's peak; not cut off at 1
            exposed_ns: what compute on the same device does not hide
            waited_ns: of that, for the last rank, in step: no compute ran
            algbw_bytes_per_s: size of the operation over time
            median_ns: the median time
            group: the communicator, empty where it has no name
            group_size (count): how many ranks it has
            algorithm: algorithms and protocols, by the kernels' names
            dtype: the types of the elements
            peak_bytes_per_s: the peak of the link in one direction

        Table ``phases``: one row per phase whose code called collectives, the most exposed first
            phase, count, exposed_ns

        Table ``peaks``: one row per size of groups: the link that bandwidths are held against
            group_size, peak_bytes_per_s, link, source, is_wider
        """
        return self._table("collectives", by)

    def collective_events(self) -> Result:
        """Every collective by itself: size, bandwidth, phase, exposed time.

        The same as ``collectives(by="event")``. Table ``events``: one row per collective, in the
        order of time
            at_ns: its start
            op: the operation
            phase: the phase whose code called it
            caller: the innermost range around the call: a layer, a module
            step: the step that called it
            size_bytes: what this rank handed in
            dtype: the type of the elements
            peer: whom a send goes to or a receive comes from
            group: the communicator, empty where it has no name
            group_size (count): how many ranks it has
            sequence: its number in the communicator
            process: the process
            device: the device
            stream: the stream
            duration_ns: how long it took, waiting for others included
            exposed_ns: what compute does not hide
            delay_ns: from the call to the start of the kernel
            algbw_bytes_per_s: size of the operation over time
            busbw_bytes_per_s: what each link must carry
            algorithm: the algorithm that the kernel names
            protocol: the protocol that the kernel names
            kernels_count: how many kernels carried it out
            number: its place in the recording of the process, from 0
        """
        return self._table("collectives", "event")

    def callers(self) -> Result:
        """Collectives by the phase and layer that called them: exposed, hidden.

        The same as ``collectives(by="caller")``. Table ``callers``: one row per phase, caller and
        operation, the most exposed first
            phase: the phase whose code called
            caller: the innermost range around the call, empty outside any
            size_bytes: what ranks handed in, none if one is not known
            exposed_ns: what compute does not hide, none if not all known
            hidden_ns: the rest of total_ns
            exposed_ratio: exposed_ns of total_ns
            unsized_count: of these, of unknown size
            unplaced_count: of these, timed but not on a device
            alone_count: of these, on a device with no compute beside them at any time
            sharded_count: of these, known to be all-gathers of parameters or reduce-scatters of
                gradients (FSDP, ZeRO): by ranges around calls of the group, or since the group
                reduces in backward alone
            gathered_bytes: what the all-gathers among these gather, the shards of all ranks; none
                if one is not known
            as in ``collectives()``: op, count, total_ns
        """
        return self._table("collectives", "caller")

    def buckets(self) -> Result:
        """The collectives of a step in their order (buckets of DDP).

        The same as ``collectives(by="bucket")``. Table ``buckets``: one row per process and place
        in the step; steps with another operation or size at a place have rows of their own
            place: 1 is the first collective of a step
            op: the operation
            phase: the phase whose code called it
            size_bytes: what the rank hands in
            count: in how many steps
            after_ns: the median time from the start of the step to its own
            duration_ns: the median of how long it takes
            exposed_ns: the median of what compute does not hide
            as in ``collective_events()``: process, algbw_bytes_per_s, busbw_bytes_per_s

        Table ``steps``: one row per step of the window
            step, count
        """
        return self._table("collectives", "bucket")

    def shared(self) -> Result:
        """Collectives that ranks share: time without waiting, who came last.

        The same as ``collectives(by="rank")``. Table ``collectives``: one row per collective, once
        for all its ranks, in the order of time
            at_ns: the start of the last rank
            op: what it does
            route: of a message: from which rank to which
            group: its communicator
            group_size (count): the ranks of its communicator
            size_bytes: what one rank hands in; of uneven parts the mean
            ranks (count): how many ranks have it
            duration_ns: of the shortest rank: without waiting, unless only one has it
            algbw_bytes_per_s: its size over that time
            busbw_bytes_per_s: what each link carried
            waited_ns: what all ranks waited for the last in it and did not compute, together, once
                they were in step: as `stragglers` counts it
            spread_ns: between its ends: clocks differ, or a wrong match
            last: the rank that came last
            imbalance (factor): of uneven parts: the largest over the mean
            matched_by: how it is known that these are the same
            apart_ns: how much earlier than the last all others began, together: also while they
                computed, and before the ranks were in step
            number: its place in the order of time, of the whole run
        """
        return self._table("collectives", "rank")

    def network(self, by: Literal["link", "peer", "time"] = "link") -> Result:
        """Traffic of network, NVLink and PCIe by counters, against the link's peak.

        Args:
            by: what the rows are: "link", or as in "peer" (`peers`), "time" (`network_time`)

        Table ``sources``: one row per source that moved anything and direction, the most first
            source: an interface, an RDMA port, the TCP sockets of a process, a GPU
            link: network, tcp, nvlink or pcie
            direction: sent or received, as the source sees it
            size_bytes: what moved
            duration_ns: the part of the window that the samples cover
            rate_bytes_per_s: the mean over it
            top_rate_bytes_per_s: the highest between two samples
            peak_ratio: the mean rate's share of the link's speed
            top_ratio: the highest rate's share of the link's speed
            in_collectives_bytes: of size_bytes, between samples in which a collective was on its
                way
            collective_bytes: what ranks handed in to them meanwhile

        Table ``links``: one row per link of a GPU and direction, where the GPU itself counted its
        use in per cent (nsys --gpu-metrics-devices); bytes are not told
            source, link, direction, duration_ns, mean_ratio, top_ratio
        """
        return self._table("network", by)

    def peers(self) -> Result:
        """Who sends how much to whom: messages and peer copies.

        The same as ``network(by="peer")``. Table ``edges``: one row per source, target and backend,
        those that move the most bytes first
            source: the rank, or GPU, that sends
            target: the one that receives
            via: the backend of the messages, or peer copy
            count: messages or copies
            matched_count: those with both ends in the trace
            size_bytes: their bytes, where all were recorded
            moving_ns: when any with both ends was on its way: of each the shorter end, no waiting
            rate_bytes_per_s: the bytes of those, over that time
            peak_ratio: that, of the link's peak
            receiver_waited_ns: receivers waited for their sender and did not compute, once they
                were in step: as `stragglers` counts it
            sender_waited_ns: the same of senders, for their receiver
            receiver_early_ns: receives were posted before their send: also while they computed, and
                before the ranks were in step
            sender_early_ns: sends were posted before their receive
            peak_bytes_per_s: the peak of the link
        """
        return self._table("network", "peer")

    def network_time(self) -> Result:
        """Traffic of network, NVLink and PCIe over time, beside the collectives that caused it.

        The same as ``network(by="time")``. Table ``intervals``: one row per source, direction and
        time between two samples, in the order of time
            at_ns: where the interval begins
            duration_ns: how long it is
            rate_bytes_per_s: bytes over the interval
            peak_ratio: the rate's share of the link's speed
            collective_ratio: of the time, when a collective ran
            as in ``network()``: source, link, direction, size_bytes, collective_bytes
        """
        return self._table("network", "time")
