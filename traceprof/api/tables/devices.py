"""Tables of GPU activity, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfDevices(ShownRun):
    """Tables of GPU activity."""

    def breakdown(self, by: Literal["device", "phase", "layer"] = "device") -> Result:
        """Time per GPU: compute, exposed communication, exposed transfers, idle.

        Args:
            by: the grouping: "device", or "phase" (`phases`), "layer" (`layers`)

        Table ``devices``: one row per GPU with activity in the trace
            device: GPU index in the run
            name: GPU model
            duration_ns: duration of the window, without the parts that were not recorded
            compute_ns: time in which compute kernels ran
            exposed_communication_ns: time in which communication ran and compute kernels did not
            exposed_transfer_ns: time in which copies to or from the host or another GPU ran and
                kernels did not
            device_memory_ns: time in which only copies and memsets within GPU memory ran
            idle_ns: time in which nothing ran
            communication_ns: time in which communication ran, exposed or overlapped with compute
            transfer_ns: time in which copies to or from the host or another GPU ran, exposed or
                overlapped with kernels
            communication_overlap_ns: communication time overlapped with compute
            transfer_overlap_ns: transfer time overlapped with kernels
            kernel_ns: time in which any kernel ran
            compute_ratio: compute as a share of the step time, or of the window if the scalar
                `base` is `window`; the five shares from compute to idle add up to 100%
            exposed_communication_ratio: exposed communication as a share of the same time
            exposed_transfer_ratio: exposed transfers as a share of the same time
            device_memory_ratio: copies and memsets within GPU memory as a share of the same time
            idle_ratio: idle time as a share of the same time; if unprofiled steps give the step
                time, idle time is the step time minus the GPU's work
            utilization_ratio: kernel_ns divided by duration_ns (GPU-Util in nvidia-smi)
            communication_overlap_ratio: share of communication_ns that is overlapped with compute
            transfer_overlap_ratio: share of transfer_ns that is overlapped with kernels

        Table ``total``: sum over all GPUs
            duration_ns, compute_ns, exposed_communication_ns, exposed_transfer_ns,
            device_memory_ns, idle_ns, communication_ns, transfer_ns, communication_overlap_ns,
            transfer_overlap_ns, kernel_ns, compute_ratio, exposed_communication_ratio,
            exposed_transfer_ratio, device_memory_ratio, idle_ratio, utilization_ratio,
            communication_overlap_ratio, transfer_overlap_ratio
        """
        return self._table("breakdown", by)

    def phases(self) -> Result:
        """CPU and GPU time by phase of the training loop.

        Same as ``breakdown(by="phase")``. Table ``phases``: one row per process and phase, in the
        order of the training loop
            process: process ID
            phase: phase of the training loop, or "outside any phase"
            host_ns: time that the main thread spent in the phase, without nested phases; the phases
                of a process add up to the window
            host_ratio: host_ns as a share of the window
            count: number of times that the main thread ran the phase
            device_ns: GPU time of the kernels and copies that the phase launched (union over the
                streams of each GPU, summed over GPUs); phases may overlap
            device_ratio: device_ns as a share of the sum over all phases
            kernel_count: number of kernels that the phase launched
            inferred_count: number of kernels and copies that traceprof assigned to the phase by
                inference, because no range names their phase
        """
        return self._table("breakdown", "phase")

    def layers(self) -> Result:
        """CPU and GPU time by model layer.

        Same as ``breakdown(by="layer")``. Table ``layers``: one row per layer, by GPU time, or by
        CPU time if no GPU time was recorded; then a row for the time outside any layer follows, if
        traceprof recorded the layers
            layer: path of the module, or name of the range or operator, or "outside any layer"
            type: class of the module; "" if unknown
            count: number of times that the layer ran in the window
            host_ns: CPU time in the layer, without its backward pass
            host_self_ns: CPU time in the layer, without nested layers
            host_backward_ns: CPU time in the backward pass of the layer, with nested layers;
                missing if it was not recorded
            device_ns: total duration of the kernels and copies that the layer launched, summed over
                streams and GPUs
            device_self_ns: device_ns without nested layers
            backward_ns: GPU time of the layer's backward operators; missing if the trace does not
                link backward operators to layers
            work_count: number of kernels and copies that the layer launched
        """
        return self._table("breakdown", "layer")

    def kernels(
        self, by: Literal["name", "duration", "class", "shape", "launch"] = "name"
    ) -> Result:
        """GPU time by kernel name.

        Args:
            by: the grouping: "name", or "duration" (`durations`), "class" (`classes`), "shape"
                (`occupancy`), "launch" (`launches`)

        Table ``kernels``: one row per kernel name, by total time (summed over streams and GPUs)
            name: kernel name
            activity: kernel class
            count: number of occurrences
            total_ns: total duration
            share_ratio: total_ns as a share of the sum over all rows
            mean_ns: mean duration
            median_ns: median duration
            min_ns: shortest duration
            max_ns: longest duration
        """
        return self._table("kernels", by)

    def durations(self) -> Result:
        """Histogram of kernel durations, by kernel name.

        Same as ``kernels(by="duration")``. Table ``durations``: one row per kernel name and
        duration range (9% wide), by the total time of the kernel
            name: kernel name
            lower_bound_ns: shortest duration in the row
            upper_bound_ns: upper bound of the duration (exclusive)
            count: number of kernels
            total_ns: total duration of the kernels
        """
        return self._table("kernels", "duration")

    def classes(self) -> Result:
        """GPU time by kernel class and phase.

        Same as ``kernels(by="class")``. Table ``classes``: one row per kernel class and phase, by
        total time
            phase: phase that launched the kernels; "" if the trace contains no phases
            count: number of kernels
            total_ns: total duration of the kernels, summed over streams and GPUs
            short_count: number of kernels shorter than 10 µs
            short_ratio: share of the kernels shorter than 10 µs
            tensor_core_ns: total duration of the kernels whose names indicate tensor cores (AMD:
                matrix cores); empty for kernel classes that do not use them
            tensor_core_ratio: tensor_core_ns as a share of total_ns without tensor_core_unknown_ns
            launch_ns: CPU time in the calls that launched the kernels
            tensor_core_unknown_ns: total duration of GEMM, convolution, and attention kernels whose
                names do not indicate whether they use tensor cores
            as in ``kernels()``: activity, share_ratio, median_ns
        """
        return self._table("kernels", "class")

    def occupancy(self) -> Result:
        """Grid, block, registers, shared memory, and theoretical occupancy of kernels.

        Same as ``kernels(by="shape")``. Table ``occupancy``: one row per kernel and launch
        configuration, by total time; occupancy is calculated from the launch configuration, not
        measured
            total_ns: total duration of the launches
            count: number of launches with this configuration
            occupancy_ratio: theoretical occupancy (resident warps per SM divided by the maximum)
            limiter: resource that limits the number of blocks per SM
            waves: number of waves (blocks of the launch divided by the blocks that fit on the GPU
                at the same time); below 1, the kernel does not fill the GPU
            tail_ratio: share of the GPU that the last wave fills
            grid: number of blocks per launch in x, y, and z
            block: number of threads per block in x, y, and z
            registers: registers per thread
            shared_bytes: static and dynamic shared memory per block
            sm_blocks: resident blocks per SM
            as in ``kernels()``: name, share_ratio, mean_ns
        """
        return self._table("kernels", "shape")

    def launches(self) -> Result:
        """Kernel launch latency and queue depth.

        Same as ``kernels(by="launch")``. Table ``launches``: one row per GPU and launch call, by
        count
            device: GPU index in the run
            api: API call that launched the work
            count: number of kernels and copies that the call launched
            call_ns: median duration of the call
            call_total_ns: total duration of the calls
            delay_ns: median time from the end of the call to the start of the work; 0 if the work
                starts before the call returns
            short_ratio: share of the work that is shorter than its launch call
            queue_mean: mean queue depth of the GPU at a launch (work that was launched but had not
                started)
            queue_max (count): largest queue depth
            empty_ratio: share of the launches for which nothing was queued or running on the GPU at
                the start of the call
        """
        return self._table("kernels", "launch")

    def idle(self, by: Literal["cause", "gap", "stream", "wait"] = "cause") -> Result:
        """Causes of idle GPU time.

        Args:
            by: the grouping: "cause", or "gap" (`gaps`), "stream" (`streams`), "wait" (`sync`)

        Table ``causes``: one row per GPU and cause of idle time, largest first
            device: GPU index in the run
            cause: cause of the idle time
            total_ns: idle time with this cause; the causes of a GPU add up to its idle time
            share_ratio: idle time as a share of the step time, as in `breakdown`, or of the window
            idle_ratio: total_ns as a share of the GPU's idle time
            gap_count: number of idle gaps in which this cause is the largest

        Table ``total``: one row per cause of idle time, summed over all GPUs, largest first
            cause, total_ns, share_ratio

        Table ``names``: one row per GPU, cause on the host, and CPU activity during the idle time,
        largest first
            device, cause, name, operator, thread, total_ns, share_ratio, gap_count

        Table ``devices``: one row per GPU with activity in the trace, with its idle time
            device, recorded_ns, idle_ns, share_ratio

        Table ``histogram``: idle gaps of each GPU by duration
            device, lower_bound_ns, upper_bound_ns, count, total_ns

        Table ``host_bound_steps``: steps in which the GPUs wait for the host for more than 30% of
        the time
            process, step, idle_ratio
        """
        return self._table("idle", by)

    def gaps(self) -> Result:
        """The longest idle gaps.

        Same as ``idle(by="gap")``. Table ``gaps``: longest idle gaps, longest first
            device: GPU index in the run
            at_ns: start of the gap
            duration_ns: duration of the gap inside the window
            cause: main cause of the gap
            cause_ratio: share of the gap with this cause
            host_name: CPU activity that delayed the GPU for most of the gap: the innermost range,
                operator, or call on the thread that launches the work that ends the gap, else on
                another running thread; "" if the CPU did not delay the GPU
            host_ratio: share of the gap attributed to host_name
            overlapping_activity: longest activity of other threads during the gap, not attributed
                as a cause
            overlap_ratio: share of the gap covered by overlapping_activity
            before: last kernel or copy before the gap
            after: first kernel or copy after the gap
        """
        return self._table("idle", "gap")

    def streams(self) -> Result:
        """Each stream: busy time, and what it waits for.

        Same as ``idle(by="stream")``. Table ``streams``: one row per GPU and stream, by busy time
            device: GPU index in the run
            stream: stream ID
            count: number of kernels and copies in the stream
            busy_ns: time in which any of them ran
            host_wait_ns: gaps before work that the CPU launched after the gap had started
            kernel_wait_ns: other gaps shorter than 30 µs
            other_ns: remaining gaps, in which the stream waited for something else or the launch
                was not recorded
            gap_count: number of gaps between the kernels and copies of the stream
        """
        return self._table("idle", "stream")

    def sync(self) -> Result:
        """Host synchronization: where the CPU waits for the GPU.

        Same as ``idle(by="wait")``. Table ``waits``: one row per call, pattern, and range, by total
        duration of the calls
            call: call that waits for the GPU
            pattern: synchronize, blocking copy, or .item() (a copy of a few bytes to the host that
                the CPU waits for immediately)
            host_range: innermost range around the call
            count: number of calls
            per_step: number of calls per step
            total_ns: total duration of the calls
            mean_ns: mean duration of a call
            max_ns: longest call
            idle_ns: GPU idle time during the calls, summed over GPUs (the cause "synchronizing" in
                `idle`); empty if the trace contains no GPU activity
        """
        return self._table("idle", "wait")

    def memory(self) -> Result:
        """GPU memory over time, by phase.

        Table ``memory``: one row per source, metric, and phase, by peak
            source: GPU or process that was sampled
            metric: name of the metric in the trace
            phase: phase of the training loop at the time of the samples; "" if no process, or more
                than one process, has phases
            count: number of samples
            peak_bytes: largest sample
            mean_bytes: mean of the samples
            last_bytes: last sample
        """
        return self._table("memory", None)

    def counters(self) -> Result:
        """GPU hardware counters: SMs, tensor cores, DRAM, links.

        Table ``counters``: one row per GPU and hardware counter, as a share of the counter's
        maximum
            device: GPU index in the run
            counter: counter name in nsys
            count: number of samples
            duration_ns: part of the window that the samples cover
            mean_ratio: mean over duration_ns
            kernel_ratio: mean over the time in which kernels ran, assuming that only kernels use
                the unit; empty for PCIe and NVLink, which copies use
            top_ratio: largest sample
        """
        return self._table("counters", None)

    def summary(self) -> Result:
        """Kernels, copies, and CUDA calls by name (like the nvprof summary).

        Table ``summary``: one row per kernel, copy direction, and CUDA API call
            kind: GPU activities, or API calls on the CPU
            name: name of the kernel or call, or a copy direction such as [CUDA memcpy HtoD]
            share_ratio: total_ns as a share of all rows of the same kind
            total_ns: total duration
            count: number of occurrences
            mean_ns: mean duration
            median_ns: median duration
            min_ns: shortest duration
            max_ns: longest duration
            deviation_ns: standard deviation of the durations (sample standard deviation, n − 1)
        """
        return self._table("summary", None)
