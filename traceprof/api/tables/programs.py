"""Tables of the program, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfPrograms(ShownRun):
    """Tables of the program."""

    def findings(self) -> Result:
        """Ranked advice: what costs time and what to do about it.

        Table ``findings``: one row per finding, ordered by saving; one-time costs are ordered by
        their share of the analyzed time
            rule: name of the rule
            number: number of the finding among the findings of its rule, from 1
            title: the problem, with its share
            kind: how certain the saving is: measured, bounded (a proven upper bound), estimated (by
                a model), once (a one-time cost), none (no known saving)
            claimed_ratio: share of the base that the finding covers and no other finding claims
            saving_ratio: share of the base that could be saved
            saving_ns: time that could be saved per base
            min_saving_ns: lower end of the range of an estimated saving
            max_saving_ns: upper end of the range of an estimated saving
            base: reference of saving_ns: a step, an iteration, the window, the mean step with slow
                steps, the mean step with checkpoints, or the mean step with compilations
            base_ns: length of the base
            measured_ratio: saving that `traceprof try --from` measured for this advice
            one_time_ns: one-time cost, if the cost does not recur in each step
            model: assumptions and bounds of an estimated saving
            evidence: facts that support the finding
            action: advice
            caveat: when the advice does not apply or saves less
            window: the worst place, as a value for --window
            ranges: names of the affected ranges
            show: the analysis with more details
            ncu: command that profiles the longest launch of the main kernel with Nsight Compute;
                the launch number counts from the start of the recording
            claim_kind: type of the claimed time: lost, compute, slow steps, slower steps, or
                periodic costs
            is_minor: the finding covers less than 1% of the time and is not on the page

        Table ``losses``: one row per part of the analyzed GPU time that is not compute; together
        with compute, the parts add up to the analyzed GPU time
            loss, total_ns, share_ratio, claimed_ns, rules

        Table ``not_checked``: one row per rule that had not enough data
            rule, subject, reason

        Table ``checked``: one row per subject of the rules
            subject, is_evaluated, is_fine, lacks, seen, seen_count, share_ratio

        Table ``lost``: one row per message about GPU activity that is missing from the trace
            number, about, message
        """
        return self._table("findings", None)

    def steps(self, by: Literal["step", "phase"] = "step") -> Result:
        """Every step: duration, time breakdown, phases, throughput.

        Args:
            by: the grouping: "step", or "phase" (`step_phases`)

        Table ``steps``: one row per process and step (or iteration, if the trace contains no step
        markers), without columns for data that was not recorded
            process: process ID
            step: step number
            at_ns: start of the step
            duration_ns: step time, equal to device_ns if the step's launches were recorded, else to
                period_ns
            device_ns: step time on the GPUs, from the end of the previous step's GPU work to the
                end of this step's GPU work; the first step starts when it starts on the host, or
                later if the GPUs lag
            compute_ns: time in which compute kernels ran; the five times from compute to idle are
                means over the GPUs in use and add up to duration_ns
            exposed_communication_ns: time in which communication ran and compute kernels did not
            exposed_transfer_ns: time in which copies to or from the host or another GPU ran and
                kernels did not
            device_memory_ns: time in which only copies and memsets within GPU memory ran
            idle_ns: time in which nothing ran
            host_at_ns: start of the step on the host
            period_ns: step time on the host, from the start of the step to the start of the next
                step; for the last step, to its own end
            between_ns: part of period_ns between the end of the step and the start of the next step
            between_cause: main cause of between_ns (evaluation, checkpoint, data wait, logging,
                host synchronization, or unknown)
            lag_ns: time from the end of the step on the host to its end on the GPUs
            data_ns: CPU time in the data phase, without nested phases
            h2d_ns: CPU time in the h2d phase, without nested phases
            forward_ns: CPU time in the forward phase, without nested phases
            eval_ns: CPU time in the eval phase, without nested phases
            backward_ns: CPU time in the backward phase, without nested phases
            communication_ns: CPU time in the communication phase, without nested phases
            optimizer_ns: CPU time in the optimizer phase, without nested phases
            rollout_ns: CPU time in the rollout phase, without nested phases
            generation_ns: CPU time in the generation phase, without nested phases
            environment_ns: CPU time in the environment phase, without nested phases
            reward_ns: CPU time in the reward phase, without nested phases
            logprobs_ns: CPU time in the logprobs phase, without nested phases
            advantage_ns: CPU time in the advantage phase, without nested phases
            weight_sync_ns: CPU time in the weight_sync phase, without nested phases
            sleep_wake_ns: CPU time in the sleep_wake phase, without nested phases
            update_ns: CPU time in the update phase, without nested phases
            outside_ns: CPU time outside these phases; the phases, outside_ns, and profiler_ns add
                up to period_ns
            profiler_ns: part of period_ns that the profiler itself used; period_ns excludes the
                time in which the profiler starts or stops between steps
            h2d_bytes: bytes copied from host to GPU by copies that start in the step
            d2h_bytes: bytes copied from GPU to host by copies that start in the step
            p2p_bytes: bytes copied between GPUs by copies that start in the step
            generated_tokens_count: number of tokens generated in the step. For loops of forward
                passes, it includes the padding of sequences that ended early
            least_tokens_count: part of generated_tokens_count that is a lower bound: tokens of
                speculative decoding, of which not all accepted drafts are known
            processed_tokens_count: tokens that an inference server processed in the step: those of
                prompts and one for each running sequence, from the name of the step
            sequences_count: sequences in the batch of an inference server, from the name of the
                step
            samples_count: number of samples in the step's batches; empty if no batch was seen; in
                post-training, the number of generated sequences
            samples_per_s (1/s): samples_count divided by duration_ns; for a first step that the
                recording cuts short, divided by period_ns if period_ns is longer
            sm_clock_mhz: SM clock of the slowest GPU of the process, in MHz; mean from one second
                before the step to its end
            throttled_ratio: share of the samples in the same time in which a power or thermal limit
                reduced the clock of a GPU
            alloc_retries_count: number of allocation retries, for which PyTorch freed its cache
            device_alloc_count: number of times that PyTorch allocated memory from the GPU
            cpu_ns: time in which the training thread ran on a CPU core
            cpu_wait_ns: time in which the training thread was ready to run and waited for a CPU
                core
            is_warmup: whether the step is warm-up; the statistics exclude warm-up
            excess_ns: for an outlier, its duration minus the median of the other steps (negative if
                the step is shorter)
            grown_part: part of GPU time that explains most of excess_ns; "" if none does
            grown_part_ns: growth of grown_part compared with its usual time
            grown_phase: phase on the host that explains most of excess_ns, or "profiler",
                "between_steps", or "cpu_wait" (the thread waits for a CPU core); "" if none does
            grown_phase_ns: growth of grown_phase compared with its usual time
            excess_cause: periodic cost that made the step longer (evaluation, checkpoint,
                compiling, loading kernels, or garbage collection); such a step does not count as
                slow, and the statistics exclude it
            kind: usual, warm-up, slow, cut by an edge (partly outside the recording), incomplete
                (GPU work is missing from the trace), or the excess_cause; the statistics use usual
                steps
        """
        return self._table("steps", by)

    def step_phases(self) -> Result:
        """CPU and GPU time by phase, for every step.

        Same as ``steps(by="phase")``. Table ``step_phases``: one row per process, step, device and
        phase, in the order of time
            process: process ID
            step: step number
            device: GPU index in the run; -1 if the process uses no GPU
            phase: phase of the training loop, or "outside any phase"
            host_ns: CPU time in the phase during the step, without nested phases; the same for each
                GPU of the process
            device_ns: GPU time of the kernels and copies that the phase launched in the step,
                including work that ran after the step
            work_count: number of kernels and copies that the phase launched in the step
            inferred_count: number of these that traceprof assigned to the phase by inference
        """
        return self._table("steps", "phase")

    def path(self, by: Literal["step", "what-if"] = "step") -> Result:
        """Critical path of every step.

        Args:
            by: the grouping: "step", or "what-if" (`whatif`)

        Table ``path``: one row per process and step (one per process if no steps are known)
            process: process
            step: step number; -1 for the window
            duration_ns: duration; equals the sum of the parts
            compute_ns: compute kernels on the critical path
            communication_ns: communication kernels on the critical path
            transfer_ns: copies to or from the GPU on the critical path
            device_memory_ns: copies and memsets inside a GPU on the critical path
            data_ns: data loading on the host
            launch_ns: the host launches GPU work
            host_ns: the host runs other code, or a call takes more than 1 ms
            latency_ns: time from the launch, or from the end of the previous work, to the start of
                work
            synchronizing_ns: time from the end of GPU work to the return of the call that waited
                for it
            bound_by: largest part
        """
        return self._table("path", by)

    def whatif(self) -> Result:
        """What-if analysis: upper bounds on savings.

        Same as ``path(by="what-if")``. Table ``cases``: one row per case, sorted by gain; with
        several processes, each step uses the process with the largest gain
            case: hypothetical change
            gain_ns: upper bound on the reduction of the typical step time (of the window, if no
                steps are known)
            gain_ratio: upper bound on the gain, as a share of the analyzed time
            speedup (factor): upper bound on the speedup
            device_ratio: device_ns as a share of the analyzed time of all GPUs, as in `findings`
            window_ratio: window_ns as a share of the recorded part of the window, over all GPUs
            device_ns: exposed communication, or idle time with this cause, in the analyzed time;
                summed over GPUs
            window_ns: the same for the whole window, as in `breakdown` and `idle`
            process_count: number of processes

        Table ``links``: the rates that traceprof assumes for copies
            direction, bytes_per_s
        """
        return self._table("path", "what-if")

    def ranges(self, by: Literal["name", "work", "tree", "time"] = "name") -> Result:
        """NVTX and other host ranges by name.

        Args:
            by: the grouping: "name", or "work" (`range_work`), "tree" (`tree`), "time"
                (`range_times`)

        Table ``ranges``: one row per range name, domain, and kind, by total CPU time; time in
        nested or parallel ranges counts for each of them
            name: range name, without the numbers that PyTorch's emit_nvtx adds
            domain: NVTX domain; "" for the default domain
            kind: push_pop (nested on a thread) or start_end
            count: number of occurrences
            total_ns: total duration
            self_ns: total_ns without nested ranges of the same kind on the same thread
            share_ratio: total_ns as a share of the sum over all rows
            mean_ns: mean duration
            median_ns: median duration
            min_ns: shortest duration
            max_ns: longest duration
        """
        return self._table("ranges", by)

    def range_work(self) -> Result:
        """GPU work launched inside NVTX and other host ranges, by name.

        Same as ``ranges(by="work")``. Table ``range_work``: one row per range name and domain, by
        GPU time; work in nested ranges counts for each of them
            name: range name, without operator IDs and standalone numbers
            domain: NVTX domain; "" for the default domain
            count: number of ranges
            host_ns: total duration of the ranges on the CPU
            self_ns: host_ns without nested ranges
            device_ns: total duration of the kernels and copies launched in the ranges, each counted
                once
            device_ratio: device_ns as a share of all kernels and copies
            union_ns: time in which a GPU ran any of these kernels and copies, summed over GPUs
            device_self_ns: device_ns without work launched in nested ranges
            projected_ns: time from the first start to the last end of a range's GPU work, summed
                over the ranges
            work_count: number of kernels and copies, each counted once

        Table ``range_kernels``: one row per range and kernel launched in the range, by GPU time
            name, domain, kernel, count, total_ns
        """
        return self._table("ranges", "work")

    def tree(self) -> Result:
        """Nested ranges or operators: CPU and GPU time.

        Same as ``ranges(by="tree")``. Table ``nodes``: one row per path of nested names, parents
        first, by GPU time, or by CPU time if no GPU time was recorded
            path: names from the outermost to the innermost, separated by ›
            name: innermost name of the path
            depth: number of names around the innermost name
            count: number of times that the path ran in the window
            host_ns: total duration on the CPU within the window
            device_ns: total duration of the kernels and copies launched inside
        """
        return self._table("ranges", "tree")

    def range_times(self) -> Result:
        """Time in ranges by thread, and changes of their durations.

        Same as ``ranges(by="time")``. Table ``range_times``: one row per thread, range name, and
        kind, by time without nested ranges
            process: the process
            thread: the thread
            name: range name, without numbers of steps and occurrences
            domain: NVTX domain; "" for the default domain
            kind: push_pop (nested on a thread) or start_end
            count: number of ranges
            self_ns: total duration without nested ranges of the same kind on the same thread
            share_ratio: self_ns as a share of the window
            total_ns: total duration; a range inside a range of the same name counts once
            total_ratio: total_ns as a share of the window
            mean_ns: mean duration
            min_ns: shortest duration
            max_ns: longest duration
            change_at_ns: start of the first range after a lasting change of the duration; unknown
                for ranges that take less than 1% of the window
            before_ns: median duration before the change
            after_ns: median duration after the change
        """
        return self._table("ranges", "time")

    def operators(self) -> Result:
        """CPU operators by name: self time and total time.

        Table ``operators``: one row per operator, by self time
            name: name of the operator or call
            source: source of the record: cpu_op (PyTorch operators), osrt (OS runtime calls), …
            count: number of calls
            self_ns: time in the operator, without the operators that it calls
            self_ratio: self_ns as a share of the sum over all rows
            total_ns: total duration
            mean_ns: mean duration
            median_ns: median duration
            min_ns: shortest duration
            max_ns: longest duration
        """
        return self._table("operators", None)

    def functions(self, by: Literal["name", "stack"] = "name") -> Result:
        """Python functions (torch.profiler or nsys stacks): CPU time, and GPU time launched there.

        Args:
            by: the grouping: "name", or "stack" (`function_stacks`)

        Table ``functions``: one row per Python function, by CPU time without nested functions
            function: file, line, and name of the function
            part: program, library, or waiting (for another thread or a message, or sleeping)
            count: number of calls that last 50 µs or more
            host_self_ns: CPU time in the function, without nested functions of 50 µs or more
            host_ns: CPU time in the function; recursion counts once
            device_ns: total duration of the kernels and copies launched in the function and in
                nested functions, summed over streams and GPUs
            work_count: number of these kernels and copies
        """
        return self._table("functions", by)

    def function_stacks(self) -> Result:
        """Nested Python functions of the program: CPU and GPU time.

        Same as ``functions(by="stack")``. Table ``nodes``: one row per path of nested names,
        parents first, by GPU time, or by CPU time if no GPU time was recorded
            path: names from the outermost to the innermost, separated by ›
            name: innermost name of the path
            depth: number of names around the innermost name
            count: number of times that the path ran in the window
            host_ns: total duration on the CPU within the window
            device_ns: total duration of the kernels and copies launched inside
        """
        return self._table("functions", "stack")

    def quality(self) -> Result:
        """Problems in the trace itself.

        Table ``suspicions``: one row per suspicious finding
            check: name of the check
            table: table with the suspicious rows; empty if the finding is about the whole trace
            number: number of the finding within its check and table, starting at 1
            message: description
            rows_count: number of suspicious rows
            first_rows: first suspicious rows, in the first file that has any
            duration_ns: total duration, or size of the deviation
        """
        return self._table("quality", None)
