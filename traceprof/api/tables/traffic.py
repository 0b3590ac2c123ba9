"""Tables of data that GPUs and ranks transfer, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfTraffic(ShownRun):
    """Tables of data that GPUs and ranks transfer."""

    def copies(self, by: Literal["direction", "size", "time"] = "direction") -> Result:
        """Copies by direction: bytes and GB/s.

        Args:
            by: the grouping: "direction", or "size" (`transfers`), "time" (`bandwidth`)

        Table ``copies``: one row per GPU, direction, and memory kind at both ends, sorted by total
        time
            device: number of the GPU in the run
            direction: direction of the copy, or memset
            src_kind: kind of source memory
            dst_kind: kind of destination memory
            count: number of occurrences
            total_ns: total duration
            busy_ns: time with at least one running copy; copies may overlap
            size_bytes: bytes copied
            rate_bytes_per_s: size_bytes divided by total_ns: the rate of a single copy
            share_ratio: total_ns as a share of the sum over all rows
            mean_ns: mean duration
            median_ns: median duration
            min_ns: shortest duration
            max_ns: longest duration
        """
        return self._table("copies", by)

    def transfers(self) -> Result:
        """Copies between host and GPU by size: GB/s compared with the link's peak.

        Same as ``copies(by="size")``. Table ``transfers``: one row per GPU, route, memory kind, and
        size class ("all" first), sorted by total time
            device: GPU
            route: h2d, d2h, or source and target GPU (p2p 0→3)
            memory: kind of host memory; for a peer copy, the kind of source memory
            sizes: size class (K and M are binary)
            count: number of copies
            size_bytes: bytes copied
            total_ns: total duration
            busy_ns: time with at least one running copy
            exposed_ns: part of busy_ns not overlapped with kernels on the GPU
            overhead_ns: total_ns minus the time that the bytes need at the rate of the fastest size
                class of the route
            rate_bytes_per_s: bytes divided by total_ns: the rate of a single copy
            peak_bytes_per_s: peak of the link in this direction
            peak_ratio: rate as a share of the peak; can exceed 1

        Table ``memory``: one row per direction and memory kind, over all GPUs
            direction, memory, count, size_bytes, total_ns, large_bytes, large_ns, rate_bytes_per_s,
            large_rate_bytes_per_s

        Table ``links``: one row per GPU and route: the link whose peak the rates are compared with
            device, route, peak_bytes_per_s, link, source
        """
        return self._table("copies", "size")

    def bandwidth(self) -> Result:
        """Copy bandwidth over time, by GPU and route.

        Same as ``copies(by="time")``. Table ``slices``: one row per GPU, route, and hundredth of
        the window with copies, in time order
            device: GPU
            route: direction, or source and target GPU (p2p 0→3)
            at_ns: start of the slice
            duration_ns: duration of the slice
            size_bytes: bytes copied in the slice; the slices add up to all bytes
            busy_ns: time with at least one running copy
            rate_bytes_per_s: bytes divided by the duration of the slice
            peak_bytes_per_s: peak of the link; for copies inside a GPU, half the peak memory
                bandwidth, since each byte is read and written
            peak_ratio: rate as a share of the peak
        """
        return self._table("copies", "time")

    def collectives(
        self, by: Literal["operation", "event", "caller", "bucket", "rank"] = "operation"
    ) -> Result:
        """Collectives by operation and size: time, algbw, busbw, exposed time.

        Args:
            by: the grouping: "operation", or "event" (`collective_events`), "caller" (`callers`),
                "bucket" (`buckets`), "rank" (`shared`)

        Table ``classes``: one row per operation, group, and size class, sorted by total time over
        all ranks. Bandwidth is total size divided by total time, as in nccl-tests. If several ranks
        recorded a collective, its time is that of the shortest rank, which excludes waiting;
        otherwise its recorded duration. Bandwidth is empty if a size, a time, or the number of
        ranks is unknown
            op: operation
            sizes: size class of the input per rank (K and M are binary)
            count: number of collectives, summed over ranks
            size_bytes: total input size of all ranks; empty if any size is unknown
            total_ns: total duration, summed over ranks
            busbw_bytes_per_s: bus bandwidth: the rate that each link must carry
            peak_ratio: bus bandwidth as a share of the link's peak; can exceed 1
            exposed_ns: time not overlapped with compute on the same GPU
            waited_ns: part of exposed_ns spent waiting for the last rank, after the ranks first
                synchronized
            algbw_bytes_per_s: algorithm bandwidth: operation size divided by time
            median_ns: median duration
            group: communicator; empty if it has no name
            group_size (count): number of ranks in the communicator
            algorithm: algorithms and protocols, from kernel names
            dtype: element types
            peak_bytes_per_s: peak of the link in one direction

        Table ``phases``: one row per phase that called collectives, sorted by exposed time
            phase, count, exposed_ns

        Table ``peaks``: one row per group size: the link whose peak the bandwidth is compared with
            group_size, peak_bytes_per_s, link, source, is_larger_than_machine
        """
        return self._table("collectives", by)

    def collective_events(self) -> Result:
        """Each collective: size, bandwidth, phase, exposed time.

        Same as ``collectives(by="event")``. Table ``events``: one row per collective, in time order
            at_ns: start
            op: operation
            phase: phase of the training loop that called the collective
            caller: innermost range around the call, such as a layer or module
            step: step that called the collective
            size_bytes: input size of this rank
            dtype: element type
            peer: destination of a send, or source of a receive
            group: communicator; empty if it has no name
            group_size (count): number of ranks in the communicator
            sequence: sequence number in the communicator
            process: process
            device: GPU
            stream: stream
            duration_ns: duration, including waiting for other ranks
            exposed_ns: time not overlapped with compute
            delay_ns: time from the call to the start of the kernel
            algbw_bytes_per_s: algorithm bandwidth: operation size divided by time
            busbw_bytes_per_s: bus bandwidth: the rate that each link must carry
            algorithm: algorithm, from the kernel name
            protocol: protocol, from the kernel name
            kernels_count: number of kernels
            number: index of the collective in the recording of the process, starting at 0
        """
        return self._table("collectives", "event")

    def callers(self) -> Result:
        """Collectives by calling phase and layer: exposed and overlapped time.

        Same as ``collectives(by="caller")``. Table ``callers``: one row per phase, caller, and
        operation, sorted by exposed time
            phase: phase of the training loop that called the collectives
            caller: innermost range around the call; empty if the call is outside all ranges
            exposed_ns: time not overlapped with compute; empty if unknown for any collective
            hidden_ns: time overlapped with compute: total_ns minus exposed_ns
            exposed_ratio: exposed_ns as a share of total_ns
            unknown_size_count: number of these with unknown size
            unknown_device_count: number of these with a duration but without a GPU
            without_compute_count: number of these on a GPU that ran no compute at the same time
            sharded_count: number of these that gather parameters or reduce-scatter gradients (FSDP,
                ZeRO). traceprof detects them from ranges around the calls of the group, or from a
                group that reduces only in backward
            gathered_bytes: total output size of the all-gathers among these (the shards of all
                ranks); empty if any size is unknown
            as in ``collectives()``: op, count, size_bytes, total_ns
        """
        return self._table("collectives", "caller")

    def buckets(self) -> Result:
        """Collectives of a step in order (DDP buckets).

        Same as ``collectives(by="bucket")``. Table ``buckets``: one row per process and position in
        the step. If steps differ in operation or size at a position, each variant has its own row
            place: position of the collective in its step, starting at 1
            op: operation
            phase: phase of the training loop that called the collective
            size_bytes: input size per rank
            count: number of steps with this collective
            after_ns: median time from the start of the step to the start of the collective
            duration_ns: median duration
            exposed_ns: median time not overlapped with compute
            as in ``collective_events()``: process, algbw_bytes_per_s, busbw_bytes_per_s

        Table ``steps``: one row per step in the window
            step, count
        """
        return self._table("collectives", "bucket")

    def shared(self) -> Result:
        """Each collective across its ranks: time without waiting, last rank to arrive.

        Same as ``collectives(by="rank")``. Table ``collectives``: one row per collective, combined
        over its ranks, in time order
            at_ns: start of the last rank
            op: operation
            route: source and destination rank of a message
            group: communicator
            group_size (count): number of ranks in the communicator
            size_bytes: input size per rank; the mean if sizes are uneven
            ranks (count): number of ranks that recorded the collective
            duration_ns: duration on the shortest rank, which excludes waiting if several ranks
                recorded it
            algbw_bytes_per_s: algorithm bandwidth: operation size divided by duration_ns
            busbw_bytes_per_s: bus bandwidth: the rate that each link carried
            waited_ns: time that all ranks waited for the last rank without computing, after the
                ranks first synchronized; summed over ranks, as in `stragglers`
            spread_ns: spread of the end times; a large value indicates different clocks or a wrong
                match
            last: last rank to arrive
            imbalance (factor): largest input size divided by the mean, if sizes are uneven
            matched_by: how traceprof matched the collective across ranks
            arrival_skew_ns: time between the start on each rank and the start on the last rank,
                summed over ranks; includes time with compute and time before the ranks first
                synchronized
            number: index in time order over the whole run
        """
        return self._table("collectives", "rank")

    def network(self, by: Literal["link", "peer", "time"] = "link") -> Result:
        """Network, NVLink, and PCIe traffic from counters, compared with the link's peak.

        Args:
            by: the grouping: "link", or "peer" (`peers`), "time" (`network_time`)

        Table ``sources``: one row per source and direction with traffic, sorted by size
            source: network interface, RDMA port, TCP sockets of a process, or GPU
            link: network, tcp, nvlink, or pcie
            direction: sent or received, from the point of view of the source
            size_bytes: bytes transferred
            duration_ns: part of the window that the samples cover
            rate_bytes_per_s: mean rate over duration_ns
            top_rate_bytes_per_s: highest rate between two samples
            peak_ratio: mean rate as a share of the link's peak
            top_ratio: highest rate as a share of the link's peak
            in_collectives_bytes: part of size_bytes transferred between samples with a running
                collective
            collective_bytes: input size of the collectives in that time, summed over ranks

        Table ``links``: one row per GPU link and direction, for GPUs that sample link utilization
        in percent (nsys --gpu-metrics-devices). These samples contain no byte counts
            source, link, direction, duration_ns, mean_ratio, top_ratio
        """
        return self._table("network", by)

    def peers(self) -> Result:
        """Traffic between each pair of ranks or GPUs: messages and peer copies.

        Same as ``network(by="peer")``. Table ``edges``: one row per source, target, and backend,
        sorted by bytes
            source: rank or GPU that sends
            target: rank or GPU that receives
            via: backend of the messages, or peer copy
            count: number of messages or copies
            matched_count: number of these with both ends in the trace
            size_bytes: bytes sent; empty if any size is unknown
            in_transit_ns: time with at least one matched message in transit. The shorter end of
                each message counts, so waiting is excluded
            rate_bytes_per_s: bytes of the matched messages divided by in_transit_ns
            peak_ratio: rate as a share of the link's peak
            receiver_waited_ns: time that receivers waited for the sender without computing, after
                the ranks first synchronized, as in `stragglers`
            sender_waited_ns: time that senders waited for the receiver without computing, counted
                in the same way
            receiver_early_ns: time from posting the receive to posting the send; includes time with
                compute and time before the ranks first synchronized
            sender_early_ns: time from posting the send to posting the receive, counted in the same
                way
            peak_bytes_per_s: peak of the link
        """
        return self._table("network", "peer")

    def network_time(self) -> Result:
        """Network, NVLink, and PCIe traffic over time, with the collectives that caused it.

        Same as ``network(by="time")``. Table ``intervals``: one row per source, direction, and
        interval between two samples, in time order
            at_ns: start of the interval
            duration_ns: duration of the interval
            rate_bytes_per_s: bytes divided by duration
            peak_ratio: rate as a share of the link's peak
            collective_ratio: share of the interval with a running collective
            collective_bytes: input size of the collectives in the interval, summed over ranks
            as in ``network()``: source, link, direction, size_bytes
        """
        return self._table("network", "time")
