"""Tables of what devices did, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfDevices(ShownRun):
    """Tables of what devices did."""

    def breakdown(self, by: Literal["device", "phase", "layer"] = "device") -> Result:
        """Where the time of each device went.

        Args:
            by: what the rows are: "device", or as in "phase" (`phases`), "layer" (`layers`)

        Table ``devices``: one row per device that worked
            device: the number of the device in the run
            name: what the device is
            duration_ns: the length of the window, as far as it was recorded
            compute_ns: when compute kernels ran
            exposed_communication_ns: when communication ran and no compute hid it
            exposed_transfer_ns: when copies from or to elsewhere ran and no kernel did
            device_memory_ns: when only copies and memsets inside the device ran
            idle_ns: when nothing ran
            communication_ns: when communication ran, hidden or not
            transfer_ns: when copies from or to elsewhere ran, hidden or not
            communication_overlap_ns: communication that compute hides
            transfer_overlap_ns: copies from or to elsewhere that kernels hide
            kernel_ns: when any kernel ran
            compute_ratio: the share of compute in a step (of the window, where the scalar base says
                window); the next four shares are of the same, and together they are 100%
            exposed_communication_ratio: the share of exposed communication
            exposed_transfer_ratio: the share of exposed copies
            device_memory_ratio: the share of copies inside the device
            idle_ratio: the share of idle time; where steps that were not profiled tell how long a
                step is, what is left of such a step beside the work
            utilisation_ratio: kernel_ns of duration_ns: GPU-Util of nvidia-smi
            communication_overlap_ratio: the share of communication that is hidden
            transfer_overlap_ratio: the share of these copies that is hidden

        Table ``total``: all devices added up, their parts and their durations
            duration_ns, compute_ns, exposed_communication_ns, exposed_transfer_ns,
            device_memory_ns, idle_ns, communication_ns, transfer_ns, communication_overlap_ns,
            transfer_overlap_ns, kernel_ns, compute_ratio, exposed_communication_ratio,
            exposed_transfer_ratio, device_memory_ratio, idle_ratio, utilisation_ratio,
            communication_overlap_ratio, transfer_overlap_ratio
        """
        return self._table("breakdown", by)

    def phases(self) -> Result:
        """Host and device time by phase of the training loop.

        The same as ``breakdown(by="phase")``. Table ``phases``: one row per process and phase, in
        the order of the training loop; host times of a process add up to the window, device times
        may overlap
            process: the process
            phase: the phase, or "outside any phase"
            host_ns: when the main thread was in it, and in no other inside
            host_ratio: host_ns of the window
            count: how often it ran there
            device_ns: how long devices worked on what it launched: the union over the streams of
                each device, added up over devices
            device_ratio: device_ns of the sum over the phases
            kernel_count: how many kernels it launched
            inferred_count: how many kernels and copies are its own although no range says so
        """
        return self._table("breakdown", "phase")

    def layers(self) -> Result:
        """Host and device time by layer of the model.

        The same as ``breakdown(by="layer")``. Table ``layers``: one row per layer, by device time,
        else by host time
            layer: the path of the module, else the name of a range or operator
            type: the class of the module; "" where it is not known
            count: how often it ran in the window
            host_ns: when the host was in it
            host_self_ns: when the host was in it, and in no other inside
            device_ns: the durations of all that it launched, added up over streams and devices
            device_self_ns: the same without the layers inside it
            backward_ns: the device time of its backward operators; not there where names do not
                tell
            work_count: how many kernels and copies it launched
        """
        return self._table("breakdown", "layer")

    def kernels(
        self, by: Literal["name", "duration", "class", "shape", "launch"] = "name"
    ) -> Result:
        """Device time by kernel name.

        Args:
            by: what the rows are: "name", or as in "duration" (`durations`), "class" (`classes`),
                "shape" (`occupancy`), "launch" (`launches`)

        Table ``kernels``: one row per kernel name, by total time (added up over streams and
        devices)
            name: the name of the kernel
            activity: what kind of work it does
            count: how many
            total_ns: the durations of all added up
            share_ratio: total_ns of the sum over all rows
            mean_ns: the mean duration
            median_ns: the median duration
            min_ns: the shortest duration
            max_ns: the longest duration
        """
        return self._table("kernels", by)

    def durations(self) -> Result:
        """How many launches of each kernel took how long.

        The same as ``kernels(by="duration")``. Table ``durations``: one row per kernel name and
        class of durations (a class is 9 % wide), by the total time of the kernel
            name: the name of the kernel
            from_ns: the shortest that it holds
            up_to_ns: the longest are shorter than this
            count: how many
            total_ns: their durations added up
        """
        return self._table("kernels", "duration")

    def classes(self) -> Result:
        """Kernels by class and phase.

        The same as ``kernels(by="class")``. Table ``classes``: one row per activity and phase, by
        total time
            activity: what kind of work it is
            phase: the phase that launched it; "" where none are named
            count: how many kernels
            total_ns: their durations added up over streams and devices
            share_ratio: total_ns of the sum over all rows
            median_ns: the median duration
            short_count: how many are shorter than 10 µs
            short_ratio: the share of the kernels that are that short
            tensor_core_ns: total_ns in kernels named after tensor cores (AMD: matrix cores); not
                known of work that has no use for them
            tensor_core_ratio: tensor_core_ns of what is told: total_ns without
                tensor_core_unknown_ns
            launch_ns: host time in the calls that launched them
            tensor_core_unknown_ns: total_ns in GEMM, convolution and attention kernels of which
                names do not tell
        """
        return self._table("kernels", "class")

    def occupancy(self) -> Result:
        """Grid, block, registers, shared memory of kernels, theoretical occupancy.

        The same as ``kernels(by="shape")``. Table ``occupancy``: one row per kernel and way of
        launching it, by total time; occupancy is theoretical: it follows from the launch, nothing
        was measured
            count: how often it was launched so
            occupancy_ratio: warps that a multiprocessor can hold of it to those that there can be
                at most
            limiter: what allows no more blocks on a multiprocessor
            waves: how often its blocks can fill the GPU; below 1 it never does
            tail_ratio: how full the last wave is
            grid: blocks of the launch in x, y and z
            block: threads of a block in x, y and z
            registers: registers of a thread
            shared_bytes: static and dynamic shared memory of a block
            sm_blocks: blocks of it on a multiprocessor
            as in ``kernels()``: name, total_ns, share_ratio, mean_ns
        """
        return self._table("kernels", "shape")

    def launches(self) -> Result:
        """Launch latency and queue depth.

        The same as ``kernels(by="launch")``. Table ``launches``: one row per device and launch
        call, by number
            device: the number of the device in the run
            api: the call that launched the work
            count: how many kernels and copies it launched
            call_ns: the median length of the call
            call_total_ns: the length of all calls added up
            delay_ns: the median time from the end of the call to the start of the work, 0 where it
                starts earlier
            short_ratio: the share of work shorter than its call
            queue_mean: how many launched pieces of work of the device had not started, when one
                more was launched
            queue_max (count): the most that had not started
            empty_ratio: the share of launches that found nothing queued or running: launch-bound
        """
        return self._table("kernels", "launch")

    def idle(self, by: Literal["cause", "gap", "stream", "wait"] = "cause") -> Result:
        """Why devices were idle.

        Args:
            by: what the rows are: "cause", or as in "gap" (`gaps`), "stream" (`streams`), "wait"
                (`sync`)

        Table ``causes``: one row per device and cause, the largest first: per device they are its
        idle time
            device: the number of the device in the run
            cause: what the device waited for
            total_ns: how long
            share_ratio: its share of a step, as `breakdown` has it (of the window without steps)
            idle_ratio: total_ns of the idle time of the device
            gap_count: gaps in which it is the largest cause

        Table ``total``: one row per cause, the largest first: all devices together
            cause, total_ns, share_ratio

        Table ``names``: one row per device, cause and name that the host was in, the largest first:
        the time of the host's causes, charged by overlap
            device, cause, name, operator, thread, total_ns, share_ratio, gap_count

        Table ``devices``: one row per device that worked: how long it was idle, as `breakdown` has
        it
            device, recorded_ns, idle_ns, share_ratio

        Table ``histogram``: the gaps of each device by length
            device, from_ns, up_to_ns, count, total_ns

        Table ``host_bound_steps``: the steps in which devices waited more than 30 % of the time for
        the host
            process, step, idle_ratio
        """
        return self._table("idle", by)

    def gaps(self) -> Result:
        """The longest idle gaps.

        The same as ``idle(by="gap")``. Table ``gaps``: the longest gaps, the longest first
            device: the number of the device in the run
            at_ns: when it opens
            duration_ns: its length inside the window
            cause: what the device waited for the longest
            cause_ratio: the share of that cause
            host_name: what the host was in for most of it, by overlap: a range, operator or call,
                innermost, of the thread that launches what ends it, else of one that runs; "" where
                the host held nobody up
            host_ratio: the share of the gap charged to that
            meanwhile: what other threads ran the longest in it: told, not charged
            meanwhile_ratio: the share of the gap that this covers
            before: the work that ended before it
            after: the work that ends it
        """
        return self._table("idle", "gap")

    def streams(self) -> Result:
        """Streams one by one: busy, and waiting for what.

        The same as ``idle(by="stream")``. Table ``streams``: one row per device and stream, by busy
        time; gaps are those between its own work
            device: the number of the device in the run
            stream: the number of the stream
            count: kernels and copies
            busy_ns: when any of them ran
            host_wait_ns: gaps before work that was launched after the gap had opened
            kernel_wait_ns: other gaps below 30 µs
            other_ns: the remaining gaps: it waited for something else, or the launch was not
                recorded
            gap_count: how many gaps there are
        """
        return self._table("idle", "stream")

    def sync(self) -> Result:
        """Where the host waits for a device.

        The same as ``idle(by="wait")``. Table ``waits``: one row per call, pattern and range, by
        total host time
            call: the call that waits
            pattern: synchronise, blocking copy, or .item(): a copy of a few bytes to the host that
                is waited for at once
            host_range: the innermost range around the call
            count: how many calls
            per_step: how many calls in a step
            total_ns: the length of all calls added up
            mean_ns: the mean length of a call
            max_ns: the longest call
            idle_ns: how long devices had nothing to do meanwhile, added up over devices: what
                `idle` calls synchronising; empty where no device's work was recorded
        """
        return self._table("idle", "wait")

    def memory(self) -> Result:
        """Device memory over time, by phase.

        Table ``memory``: one row per source, metric and phase, by peak
            source: what was sampled: a device, a process
            metric: what it is called there
            phase: what the host did at the time of the samples; "" where no process or several name
                phases
            count: how many samples
            peak_bytes: the largest of them
            mean_bytes: their mean
            last_bytes: the last of them
        """
        return self._table("memory", None)

    def counters(self) -> Result:
        """What counters of the GPUs measured: SMs, tensor cores, DRAM, links.

        Table ``counters``: one row per device and counter that its GPU counted in per cent of what
        is possible
            device: the number of the device in the run
            counter: what nsys calls it
            count: how many samples
            duration_ns: the part of the window that they cover
            mean_ratio: the mean over it
            kernel_ratio: the same over the time in which kernels were recorded, as if nothing else
                had moved it; not of links, which copies move
            top_ratio: the largest sample
        """
        return self._table("counters", None)

    def summary(self) -> Result:
        """Kernels, copies, CUDA calls by name, as nvprof sums up.

        Table ``summary``: one row per kernel, direction of copies and call of CUDA; shares are of
        the kind
            kind: GPU activities, or API calls of the host
            name: the name of the kernel or the call, or [CUDA memcpy HtoD] …
            share_ratio: total_ns of the sum over the rows of the kind
            total_ns: the durations of all added up
            count: how many
            mean_ns: the mean duration
            median_ns: the median duration
            min_ns: the shortest duration
            max_ns: the longest duration
            deviation_ns: the standard deviation of the durations (of a sample: n − 1)
        """
        return self._table("summary", None)
