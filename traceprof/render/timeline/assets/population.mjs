import { lengthOf } from "./channel.mjs";
import { upperBound } from "./bisect.mjs";

/** One among all of its name: how many there are, how long, and which place it takes. */

const N_BINS = 24;
const WIDE = 40;

const isDeviceKind = (kind) => kind === "gpu";

/** The durations of all events of a name, on devices or on the host; merged ones have no name. */
export function durationsOf(trace, name, kind, side = null) {
  const found = [];
  let merged = 0;
  for (const row of trace.rows) {
    if (side !== null && trace.groups[row.group].side !== side) continue;
    if (isDeviceKind(row.kind) !== isDeviceKind(kind) || (row.kind === "step") !== (kind === "step")) continue;
    for (const channel of row.channels) {
      const { names, counts, n } = channel;
      for (let i = 0; i < n; i++) {
        if (counts && counts[i] > 1) merged += counts[i];
        else if (names[i] === name) found.push(lengthOf(channel, i));
      }
    }
  }
  return { durations: Float64Array.from(found).sort(), merged };
}

/** Sorted durations in numbers: {n, total, min, median, max, place of `own` from the longest}. */
export function summarize(durations, own) {
  const n = durations.length;
  if (!n) return null;
  const middle = Math.floor(n / 2);
  return {
    n,
    total: durations.reduce((sum, duration) => sum + duration, 0),
    min: durations[0],
    median: n % 2 ? durations[middle] : (durations[middle - 1] + durations[middle]) / 2,
    max: durations[n - 1],
    place: n - upperBound(durations, own, 0, n) + 1,
    ...histogram(durations),
  };
}

/** Bins of equal width, on a logarithmic scale where the longest is many times the shortest. */
export function histogram(durations) {
  const { isLog, binOf, nBins } = binsFor(durations[0], durations[durations.length - 1]);
  const bins = new Array(nBins).fill(0);
  for (const duration of durations) bins[binOf(duration)]++;
  return { bins, isLog, binOf };
}

/** Which bin a duration is in, of those from `low` to `high`. */
export function binsFor(low, high) {
  const isLog = low > 0 && high / low > WIDE;
  const scale = isLog ? Math.log : (x) => x;
  const width = (scale(high) - scale(low)) / N_BINS;
  const binOf = (d) => (width > 0 ? Math.min(N_BINS - 1, Math.max(0, Math.floor((scale(d) - scale(low)) / width))) : 0);
  return { isLog, binOf, nBins: width > 0 ? N_BINS : 1 };
}
