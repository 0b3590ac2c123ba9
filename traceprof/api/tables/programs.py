"""Tables of what the program did, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfPrograms(ShownRun):
    """Tables of what the program did."""

    def findings(self) -> Result:
        """Ranked advice: what costs time, and what to do.

        Table ``findings``: one row per finding, the largest saving first; what occurs once by its
        share of the time that is judged
            rule: the rule that found it
            number: which one of that rule, from 1
            title: what was found
            kind: how sure the saving is: measured, bounded (provably at most that), estimated (by a
                model), once (a cost that occurs once), none (nothing is known to be saved)
            claimed_ratio: the share of the time that it is about, its own
            saving_ratio: the share of the time that could be saved
            saving_ns: the same of step_ns
            least_saving_ns: of an estimated saving the least of its range
            most_saving_ns: and the most
            base: what saving_ns is a part of: a step, an iteration, the window, or, of slow steps,
                the mean step with these
            base_ns: how long that is
            measured_ratio: what its advice saved when `traceprof try --from` tried it
            once_ns: what it costs once, where it is not per step
            model: what an estimated saving rests on
            evidence: what shows it
            action: what to do
            caveat: when it may be wrong
            window: the worst place, as --window takes it
            ranges: the ranges concerned
            show: the analysis that tells more
            ncu: what profiles the longest launch of the kernel concerned most with Nsight Compute;
                launches are counted from the start of the recording
            ground: what the claimed time is: lost, compute or slow steps
            is_minor: less than 1 % of the time: not for a page

        Table ``losses``: one row per part of the analysed time of the devices: with compute they
        fill it
            loss, total_ns, share_ratio, claimed_ns, rules

        Table ``abstained``: one row per rule that could not judge
            rule, subject, reason

        Table ``checked``: one row per subject of the rules
            subject, is_judged, is_fine

        Table ``lost``: one row per sentence on work of devices that is missing in the recording
            number, about, message
        """
        return self._table("findings", None)

    def steps(self, by: Literal["step", "phase"] = "step") -> Result:
        """Every step: duration, parts, phases, throughput.

        Args:
            by: what the rows are: "step", or as in "phase" (`step_phases`)

        Table ``steps``: one row per process and step (or iteration of a pattern that repeats, where
        no steps are known); columns of what was not recorded are not there
            process: the process
            step: the number of the step
            at_ns: when it starts
            duration_ns: its length: device_ns where its launches were recorded, else period_ns
            device_ns: on the devices: from the end of the last work that the step before launched
                to the end of the last that it launched itself (of the first step: from its start on
                the host, later where the devices lag)
            compute_ns: when compute kernels ran; this and the next four add up
            exposed_communication_ns: when communication ran and no compute hid it
            exposed_transfer_ns: when copies from or to elsewhere ran and no kernel did
            device_memory_ns: when only copies and memsets inside the device ran
            idle_ns: when nothing ran; all five are means over the devices in use
            host_at_ns: when it starts on the host
            period_ns: on the host: from its start to that of the next one; of the last one to its
                own end
            between_ns: of the period what lies between the two steps
            between_cause: what the most of that is: evaluation, checkpoint, data wait, logging, or
                unknown
            lag_ns: how much later the devices are done with it than the host
            data_ns: when the host was in data, and in no other phase inside
            h2d_ns: when the host was in h2d, and in no other phase inside
            forward_ns: when the host was in forward, and in no other phase inside
            eval_ns: when the host was in eval, and in no other phase inside
            backward_ns: when the host was in backward, and in no other phase inside
            communication_ns: when the host was in communication, and in no other phase inside
            optimizer_ns: when the host was in optimizer, and in no other phase inside
            outside_ns: when the host was in none of these phases: with them and profiler_ns it adds
                up to period_ns
            profiler_ns: when the profiler itself took the time of the period; windows that it
                begins or ends between steps are in no period_ns
            h2d_bytes: copies from host to device that start in it
            d2h_bytes: copies from device to host that start in it
            p2p_bytes: copies between devices that start in it
            samples_count: the samples of its batches; of none nothing
            samples_per_s (1/s): samples_count over duration_ns; of a first step whose span is cut
                short over period_ns where that is longer
            sm_clock_mhz: the clock of the slowest of its devices, in MHz: the mean from a second
                before it to its end
            throttled_ratio: how often in that time power or heat held the clock of one of them down
            alloc_retries_count: how often torch freed its cache to find memory
            device_alloc_count: how often torch asked the device for memory
            is_warmup: whether it is warm-up, and not in the statistics
            excess_ns: of an outlier: how much longer than the median of the others (below 0:
                shorter)
            grown_part: the device's part that explains the most of it; "" for none
            grown_part_ns: how much longer than usual that was
            grown_phase: the same of the host's phases; also "profiler" and "between_steps"
            grown_phase_ns: how much longer than usual that was
            excess_cause: what made it longer that is meant to be done now and then: evaluation,
                checkpoint, compiling or loading kernels (no slow step, and not in the statistics)
            kind: usual, warm-up, slow, cut by an edge, incomplete (work that it launched is
                missing), or excess_cause: usual ones count
        """
        return self._table("steps", by)

    def step_phases(self) -> Result:
        """The phases of every step: host time against device time.

        The same as ``steps(by="phase")``. Table ``step_phases``: one row per process, step, device
        and phase, in the order of time
            process: the process
            step: the number of the step
            device: the device; -1 where the process uses none
            phase: the phase, or "outside any phase"
            host_ns: when the host was in it during the step, and in no other inside; the same for
                each device
            device_ns: how long the device worked on what it launched in the step, whenever that ran
            work_count: how many kernels and copies these are
            inferred_count: how many of them are its own although no range says so
        """
        return self._table("steps", "phase")

    def path(self, by: Literal["step", "what-if"] = "step") -> Result:
        """The critical path of every step.

        Args:
            by: what the rows are: "step", or as in "what-if" (`whatif`)

        Table ``path``: one row per process and step (one per process where steps are not known)
            process: the process
            step: the number of the step, -1 for the window
            duration_ns: its length: the parts add up to it
            compute_ns: compute kernels on the path
            communication_ns: communication kernels on the path
            transfer_ns: copies from or to elsewhere on the path
            device_memory_ns: copies and memsets inside a device on the path
            data_ns: the host fetches data
            launch_ns: the host launches one piece of work after the other
            host_ns: the host runs other code, or a call takes more than a millisecond
            latency_ns: between a launch, or the work ahead, and the start of work
            synchronising_ns: from the end of work to the return of the call that waited for it
            bound_by: the largest part
        """
        return self._table("path", by)

    def whatif(self) -> Result:
        """What at most could be gained.

        The same as ``path(by="what-if")``. Table ``cases``: one row per case, the largest gain
        first; of several processes in each step that of the one with the most
            case: what would be different
            gain_ns: how much shorter a typical step would be, at most (the window where steps are
                not known)
            gain_ratio: gain of the analysed time, at most
            speedup (factor): how many times as fast it would be, at most
            device_ratio: device_ns of the analysed time of all devices, as `findings` counts it
            window_ratio: window_ns of the window, as far as each device was recorded in it
            device_ns: what devices lose to it in the analysed time, together: exposed
                communication, or idle for that cause
            window_ns: the same of the whole window, as `breakdown` and `idle` have it
            process_count: over how many processes

        Table ``links``: the speeds that copies are taken to reach
            direction, bytes_per_s
        """
        return self._table("path", "what-if")

    def ranges(self, by: Literal["name", "work", "tree"] = "name") -> Result:
        """NVTX and other host ranges by name.

        Args:
            by: what the rows are: "name", or as in "work" (`range_work`), "tree" (`tree`)

        Table ``ranges``: one row per name, domain and kind of range, by total host time; ranges
        nest and run on many threads, so that totals add up to more than the window
            name: the name, without the numbers that PyTorch's emit_nvtx adds
            domain: the NVTX domain; "" for the default one
            kind: push_pop (they nest on a thread) or start_end
            count: how many
            total_ns: the durations of all added up
            self_ns: the time in no other range of the same kind inside, on the same thread
            share_ratio: total_ns of the sum over all rows
            mean_ns: the mean duration
            median_ns: the median duration
            min_ns: the shortest duration
            max_ns: the longest duration
        """
        return self._table("ranges", by)

    def range_work(self) -> Result:
        """Device work launched inside NVTX and other host ranges, by name.

        The same as ``ranges(by="work")``. Table ``range_work``: one row per name and domain of
        range, by device time; ranges nest, so that totals add up to more than the work there is
            name: the name, without ids of operators and numbers that stand alone
            domain: the NVTX domain; "" for the default one
            count: how many ranges there are
            host_ns: their durations on the host
            self_ns: of that, the time in no other range inside
            device_ns: the durations of the kernels and copies launched inside, each once
            device_ratio: device_ns of all kernels and copies
            union_ns: when a device worked on any of these: the union, added up over devices
            own_ns: device_ns of what no other range inside launched
            projected_ns: from the first start to the last end of the work of each range, added up
            work_count: how many kernels and copies, each once

        Table ``range_kernels``: one row per range and kernel launched inside it, by device time
            name, domain, kernel, count, total_ns
        """
        return self._table("ranges", "work")

    def tree(self) -> Result:
        """Ranges or operators inside one another: host and device time.

        The same as ``ranges(by="tree")``. Table ``nodes``: one row per path of names, those around
        it first, by device time, else host time
            path: the names around it, the outermost first, and its own, with › between them
            name: its own name
            depth: how many are around it
            count: how often it ran in the window
            host_ns: their durations on the host, within the window
            device_ns: the durations of the kernels and copies launched inside
        """
        return self._table("ranges", "tree")

    def operators(self) -> Result:
        """Host operators by name, self and total.

        Table ``operators``: one row per operator, by self time
            name: the name of the operator or of the call
            source: who recorded it: cpu_op (PyTorch's operators), osrt …
            count: how often it ran
            self_ns: the time in it, and in no operator that it called
            self_ratio: self_ns of the sum over all rows
            total_ns: the durations of all added up
            mean_ns: the mean duration
            median_ns: the median duration
            min_ns: the shortest duration
            max_ns: the longest duration
        """
        return self._table("operators", None)

    def quality(self) -> Result:
        """What is suspicious in the trace itself.

        Table ``suspicions``: one row per thing that is suspicious
            check: what was checked
            table: the table whose rows show it, none where all is meant
            number: which one of that check and table, from 1
            message: what is suspicious
            rows_count: how many rows show it
            first_rows: the first of them in the file that has any
            duration_ns: how long that took, or how far it is off
        """
        return self._table("quality", None)
