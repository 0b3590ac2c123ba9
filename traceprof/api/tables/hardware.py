"""Tables of FLOPs and energy, as methods. Written by `scripts/schema`."""

from __future__ import annotations

from typing import Literal

from traceprof.api.results import Result, ShownRun


class TablesOfHardware(ShownRun):
    """Tables of FLOPs and energy."""

    def flops(
        self,
        by: Literal[
            "operator", "step", "ideal", "shape", "kernel", "class", "phase", "layer"
        ] = "operator",
    ) -> Result:
        """FLOPs, TFLOP/s, and FLOP per byte by PyTorch operator, compared with hardware peaks.

        Args:
            by: the grouping: "operator", or "step" (`mfu`), "ideal" (`ideal`), "shape"
                (`flops_shapes`), "kernel" (`flops_kernels`), "class" (`flops_classes`), "phase"
                (`flops_phases`), "layer" (`flops_layers`)

        Table ``flops``: one row per PyTorch operator that launched kernels and precision, sorted by
        time
            operator: outermost operator with known work, otherwise the innermost operator; "" if no
                operator launched the kernel
            precision: precision of the multiplications, from the operator's inputs and the kernel's
                name
            count: number of kernels
            total_ns: total duration over streams and GPUs
            share_ratio: total_ns as a share of all kernels
            flop: FLOPs of the operators that launched the kernels, from the sizes of their inputs.
                A multiply-add counts as two. Only matrix products, convolutions, and attention are
                counted
            achieved_flop_per_s: flop divided by known_flop_ns
            peak_ratio: achieved rate as a share of the dense peak of each kernel's precision; empty
                if a peak is unknown
            moved_bytes: minimum number of bytes that the operators move: every input read once,
                every output written once
            bandwidth_bytes_per_s: moved_bytes divided by known_bytes_ns; a lower bound
            memory_ratio: bandwidth as a share of peak memory bandwidth
            intensity: arithmetic intensity: FLOPs per byte of moved_bytes
            known_flop_ns: total_ns of the operators with known FLOPs, with all kernels that they
                launch, such as layout conversions; by kernel and by class: of the kernels with
                known FLOPs
            unknown_ns: total_ns of compute-heavy kernels with unknown FLOPs (GEMM, convolution,
                attention, experts, recurrent, FFT, whole CUDA graphs); these kernels are not
                counted
            known_bytes_ns: total_ns of the kernels with known bytes

        Table ``peaks``: one row per kernel precision: the hardware peaks at that precision
            precision, peak_flop_per_s, memory_bytes_per_s

        Table ``experts``: one row per process with products of tokens sorted by expert
            process, count, tokens_count, experts_count, expert_tokens, total_ns
        """
        return self._table("flops", by)

    def mfu(self) -> Result:
        """MFU and HFU: FLOPs per step compared with the dense peak of the GPUs.

        Same as ``flops(by="step")``. Table ``mfu``: one row per source of the FLOPs per step; the
        first row counts
            source: source of the FLOPs per step
            model_flop: FLOPs of the model per step on all GPUs, without recomputation
            executed_flop: FLOPs executed per step, with recomputation; empty if the source does not
                provide them
            step_ns: typical step time
            gpus_count: number of GPUs
            precision: precision of most matrix multiplications, by time
            peak_flop_per_s: dense peak of one GPU at that precision
            achieved_flop_per_s: model_flop per second and GPU
            mfu_ratio: model FLOPs utilization: model_flop as a share of the peak of all GPUs during
                the step
            hfu_ratio: hardware FLOPs utilization: executed_flop as a share of the same peak
            unknown_ratio: share of kernel time in compute-heavy kernels with unknown FLOPs
            tokens_per_s (1/s): tokens per second on all GPUs, from the specified tokens per step
            samples_per_s (1/s): samples per second on all GPUs

        Table ``counted``: FLOPs that torch counted in one step (`record --flops`), by module and
        operator; a module includes its submodules
            module, operator, flop
        """
        return self._table("flops", "step")

    def ideal(self) -> Result:
        """Waterfall from the ideal step time (at hardware peak) to the measured step time.

        Same as ``flops(by="ideal")``. Table ``ideal``: waterfall from the ideal step time to the
        measured step time. The parts add up exactly to length_ns
            part: part of the step time
            step_ns: time per step, mean over steps and GPUs; time in the window if no steps are
                known
            cumulative_ns: cumulative sum up to this part
            share_ratio: step_ns as a share of length_ns
            total_ns: total over all GPUs and steps in the window
        """
        return self._table("flops", "ideal")

    def flops_shapes(self) -> Result:
        """FLOPs, TFLOP/s, and waves of products, convolutions, and attention by size.

        Same as ``flops(by="shape")``. Table ``flops_shapes``: one row per operator, sizes of its
        inputs, and precision, sorted by time; operators without FLOPs are omitted
            operator: outermost operator with known FLOPs
            shape: sizes. Matrix product: M×K times K×N. Convolution: batch N, channels C, image
                size, number and size of filters, stride. Attention: batch B, heads H
                (queries/keys), lengths S (queries/keys), width D of a head
            precision: precision of the multiplications
            kernel: kernel that takes most of the time of these operators
            calls_count: number of calls of the operator that launched kernels
            waves: number of waves of the kernels (blocks of a launch divided by the blocks that fit
                on the GPU at the same time)
            wave_ratio: wave efficiency: waves divided by waves rounded up; below 1, part of the GPU
                is idle during the last wave
            as in ``flops()``: count, total_ns, share_ratio, flop, achieved_flop_per_s, peak_ratio,
                moved_bytes, bandwidth_bytes_per_s, memory_ratio, intensity, known_flop_ns,
                unknown_ns, known_bytes_ns
        """
        return self._table("flops", "shape")

    def flops_kernels(self) -> Result:
        """FLOPs, TFLOP/s, and FLOP per byte by kernel.

        Same as ``flops(by="kernel")``. Table ``flops_kernels``: one row per kernel name and
        precision, sorted by time
            name: kernel name
            precision: precision of the kernel's multiplications
            as in ``flops()``: count, total_ns, share_ratio, flop, achieved_flop_per_s, peak_ratio,
                moved_bytes, bandwidth_bytes_per_s, memory_ratio, intensity, known_flop_ns,
                unknown_ns, known_bytes_ns

        Table ``peaks``: one row per kernel precision: the hardware peaks at that precision
            precision, peak_flop_per_s, memory_bytes_per_s
        """
        return self._table("flops", "kernel")

    def flops_classes(self) -> Result:
        """FLOPs, TFLOP/s, and FLOP per byte by kernel class.

        Same as ``flops(by="class")``. Table ``flops_classes``: one row per kernel class, sorted by
        time
            activity: class of the kernels
            as in ``flops()``: count, total_ns, share_ratio, flop, achieved_flop_per_s, peak_ratio,
                moved_bytes, bandwidth_bytes_per_s, memory_ratio, intensity, known_flop_ns,
                unknown_ns, known_bytes_ns
        """
        return self._table("flops", "class")

    def flops_phases(self) -> Result:
        """FLOPs, TFLOP/s, and FLOP per byte by phase.

        Same as ``flops(by="phase")``. Table ``flops_phases``: one row per phase of the training
        loop, sorted by time
            phase: phase that launched the kernels; "" if no phases are named
            as in ``flops()``: count, total_ns, share_ratio, flop, achieved_flop_per_s, peak_ratio,
                moved_bytes, bandwidth_bytes_per_s, memory_ratio, intensity, known_flop_ns,
                unknown_ns, known_bytes_ns
        """
        return self._table("flops", "phase")

    def flops_layers(self) -> Result:
        """FLOPs, TFLOP/s, and FLOP per byte by layer.

        Same as ``flops(by="layer")``. Table ``flops_layers``: one row per model layer, sorted by
        time; a layer includes its inner layers, so the rows overlap
            layer: module path, or the name of a range or operator
            as in ``flops()``: count, total_ns, share_ratio, flop, achieved_flop_per_s, peak_ratio,
                moved_bytes, bandwidth_bytes_per_s, memory_ratio, intensity, known_flop_ns,
                unknown_ns, known_bytes_ns
        """
        return self._table("flops", "layer")

    def energy(self) -> Result:
        """GPU energy from power samples; cost per step, sample, and token.

        Table ``energy``: one row per GPU: power over the usual steps of the recording, or over the
        window if no steps are known
            device: number of the GPU in the run
            name: name of the GPU
            span_ns: total duration of these steps
            joules: energy: power integrated over these steps
            mean_watts: mean power
            max_watts: highest power in these steps
            idle_watts: lowest sampled power in the recording, used as the idle power
            idle_joules: energy at idle power over these steps

        Table ``units``: energy and cost per unit, over all GPUs
            per, duration_ns, joules, idle_joules, cost
        """
        return self._table("energy", None)
