"""Tables of FLOPs, against the peaks, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfHardware(ShownRun):
    """Tables of FLOPs, against the peaks."""

    def flops(
        self,
        by: Literal["operator", "step", "ideal", "kernel", "class", "phase", "layer"] = "operator",
    ) -> Result:
        """FLOPs, TFLOP/s and FLOP per byte by operator of PyTorch, against the peaks.

        Args:
            by: what the rows are: "operator", or as in "step" (`mfu`), "ideal" (`ideal`), "kernel"
                (`flops_kernels`), "class" (`flops_classes`), "phase" (`flops_phases`), "layer"
                (`flops_layers`)

        Table ``flops``: one row per operator of PyTorch that launched kernels, and precision, by
        time
            operator: the outermost operator whose work is known; "" for kernels of all others
            precision: what the kernels multiply in, as the operator's inputs and the kernel's name
                tell
            count: how many kernels
            total_ns: their durations added up over streams and devices
            share_ratio: total_ns of all kernels
            flop: FLOPs of the operators that launched them, by the sizes of their inputs; a
                multiply-add is two; matrix products, convolutions and attention alone are counted
            achieved_flop_per_s: flop over counted_ns
            peak_ratio: achieved of the dense peak of what each kernel multiplies in; not there
                where a peak is not known
            moved_bytes: the fewest bytes that the operators can move: every input read once, every
                output written once
            bandwidth_bytes_per_s: moved_bytes over moving_ns: at least so much
            memory_ratio: bandwidth of the memory's peak
            intensity: flop per byte of moved_bytes
            counted_ns: total_ns of the kernels whose FLOPs are known
            unknown_ns: total_ns of kernels that compute much (GEMM, convolution, attention,
                experts, recurrent, FFT, whole CUDA graphs) and whose FLOPs are not known: they are
                not counted
            moving_ns: total_ns of the kernels whose bytes are known

        Table ``peaks``: one row per precision that kernels multiplied in: the roofs over them
            precision, peak_flop_per_s, memory_bytes_per_s

        Table ``experts``: one row per process whose products take tokens sorted by expert
            process, count, tokens_count, experts_count, expert_tokens, total_ns
        """
        return self._table("flops", by)

    def mfu(self) -> Result:
        """MFU and HFU: FLOPs of a step against the dense peak of its GPUs.

        The same as ``flops(by="step")``. Table ``mfu``: one row per source of the FLOPs of a step,
        the first one counts
            source: who says how many FLOPs a step has
            model_flop: FLOPs of the model in a step on all GPUs, nothing computed twice
            executed_flop: FLOPs that run in a step, what is computed again with them; not there
                where the source does not tell
            step_ns: the length of a typical step
            gpus_count: how many GPUs
            precision: what most of the matrix work multiplies in, by its time
            peak_flop_per_s: the dense peak of one GPU at that precision
            achieved_flop_per_s: model_flop per second and GPU
            mfu_ratio: model FLOPs utilisation: model_flop of what all GPUs could do in the step at
                the peak
            hfu_ratio: hardware FLOPs utilisation: executed_flop of the same
            unknown_ratio: the share of the kernel time in kernels that compute much and whose FLOPs
                the source does not know
            tokens_per_s (1/s): tokens of all GPUs, as given
            samples_per_s (1/s): samples of all GPUs

        Table ``counted``: what torch counted in one step (`record --flops`), by module and
        operator; modules hold those inside them
            module, operator, flop
        """
        return self._table("flops", "step")

    def ideal(self) -> Result:
        """The waterfall from the ideal step, at the peaks, to the measured one.

        The same as ``flops(by="ideal")``. Table ``ideal``: the waterfall from the ideal step to the
        measured one: the parts in their order; they add up to length_ns, to the ns
            part: what the time goes to
            step_ns: its time in a step, mean over steps and devices; of the window where no steps
                are known
            until_ns: the sum up to here
            share_ratio: step_ns of the whole
            total_ns: of all devices and steps of the window
        """
        return self._table("flops", "ideal")

    def flops_kernels(self) -> Result:
        """FLOPs, TFLOP/s and FLOP per byte by kernel.

        The same as ``flops(by="kernel")``. Table ``flops_kernels``: one row per name of kernels,
        and precision, by time
            name: the name of the kernel
            precision: what it multiplies in
            as in ``flops()``: count, total_ns, share_ratio, flop, achieved_flop_per_s, peak_ratio,
                moved_bytes, bandwidth_bytes_per_s, memory_ratio, intensity, counted_ns, unknown_ns,
                moving_ns

        Table ``peaks``: one row per precision that kernels multiplied in: the roofs over them
            precision, peak_flop_per_s, memory_bytes_per_s
        """
        return self._table("flops", "kernel")

    def flops_classes(self) -> Result:
        """FLOPs, TFLOP/s and FLOP per byte by class of kernels.

        The same as ``flops(by="class")``. Table ``flops_classes``: one row per class of kernels, by
        time
            activity: what kind of work it is
            as in ``flops()``: count, total_ns, share_ratio, flop, achieved_flop_per_s, peak_ratio,
                moved_bytes, bandwidth_bytes_per_s, memory_ratio, intensity, counted_ns, unknown_ns,
                moving_ns
        """
        return self._table("flops", "class")

    def flops_phases(self) -> Result:
        """FLOPs, TFLOP/s and FLOP per byte by phase.

        The same as ``flops(by="phase")``. Table ``flops_phases``: one row per phase of the training
        loop, by time
            phase: the phase that launched the kernels; "" where none are named
            as in ``flops()``: count, total_ns, share_ratio, flop, achieved_flop_per_s, peak_ratio,
                moved_bytes, bandwidth_bytes_per_s, memory_ratio, intensity, counted_ns, unknown_ns,
                moving_ns
        """
        return self._table("flops", "phase")

    def flops_layers(self) -> Result:
        """FLOPs, TFLOP/s and FLOP per byte by layer.

        The same as ``flops(by="layer")``. Table ``flops_layers``: one row per layer of the model,
        by time; those inside it count with it, so that totals add up to more
            layer: the path of the module, else the name of a range or operator
            as in ``flops()``: count, total_ns, share_ratio, flop, achieved_flop_per_s, peak_ratio,
                moved_bytes, bandwidth_bytes_per_s, memory_ratio, intensity, counted_ns, unknown_ns,
                moving_ns
        """
        return self._table("flops", "layer")

    def energy(self) -> Result:
        """Energy of GPUs by samples of power, and the cost of a step, a sample, a token.

        Table ``energy``: one row per GPU: power over the steady steps of the whole recording, or
        over the window where no steps are known
            device: the number of the device in the run
            name: what it is
            span_ns: how long that is
            joules: power integrated over that time
            mean_watts: the mean power
            most_watts: the most that was sampled
            idle_watts: the least that was sampled anywhere in the recording: at rest
            idle_joules: what it would have drawn at rest in that time

        Table ``units``: what one of each takes on all GPUs together
            per, duration_ns, joules, idle_joules, cost
        """
        return self._table("energy", None)
