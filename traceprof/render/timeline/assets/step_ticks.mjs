import { formatDuration, makeTicks, roundUp } from "./format.mjs";
import { lowerBound, upperBound } from "./bisect.mjs";

/** The axis that two recordings share: its steps; within a step the time since it began. */

const STEP_PX = 90;

export function stepTicks(trace, t0, t1, width) {
  const { starts, labels } = trace.steps;
  const first = lowerBound(starts, t0);
  const last = lowerBound(starts, t1);
  if (!starts.length) return makeTicks(t0, t1, width);
  if (last - first > 1) {
    const every = Math.max(1, roundUp(((last - first) * STEP_PX) / width));
    const numberOf = (i) => Number(labels[i].match(/\d+/));
    const shown = Array.from({ length: last - first }, (_, i) => first + i).filter((i) => numberOf(i) % every === 0);
    return { values: shown.map((i) => starts[i]), labels: shown.map((i) => labels[i]), base: 0 };
  }
  const origin = starts[Math.max(0, upperBound(starts, (t0 + t1) / 2) - 1)];
  return makeTicks(t0, t1, width, -origin);
}

/** "step 3 + 1.200 ms": an instant of that axis. */
export function axisInstant(trace, t) {
  const slot = upperBound(trace.steps.starts, t) - 1;
  if (slot < 0) return formatDuration(t);
  return `${trace.steps.labels[slot]} + ${formatDuration(t - trace.steps.starts[slot])}`;
}
