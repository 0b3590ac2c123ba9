import { lowerBound, upperBound } from "./bisect.mjs";

/**
 * A channel: sorted intervals of one category that do not overlap, as typed columns.
 *
 * `prefix[i]` is the busy time of the items before i, so the busy time of any span is a
 * difference of two look-ups. `blockMax` holds the longest event of each block of items, so
 * that a search for long events skips whole blocks. Of merged idle times `longest` has the longest.
 */

export const BLOCK = 128;

export function makeChannel(columns) {
  const { starts, ends, busy = null, counts = null, longest = null, clock = null } = columns;
  const n = starts.length;
  const prefix = new Float64Array(n + 1);
  const blockMax = new Float64Array(Math.ceil(n / BLOCK)).fill(-1);
  for (let i = 0; i < n; i++) {
    const duration = clock ? clock.ownOf(ends[i]) - clock.ownOf(starts[i]) : ends[i] - starts[i];
    prefix[i + 1] = prefix[i] + (busy ? busy[i] : duration);
    const isMerged = counts && counts[i] > 1;
    if (isMerged && !longest) continue;
    const alone = isMerged ? lengthOf({ ...longest, clock }, i) : duration;
    const block = Math.floor(i / BLOCK);
    if (alone > blockMax[block]) blockMax[block] = alone;
  }
  return { names: null, bytes: null, correlations: null, ...columns, busy, counts, longest, clock, n, prefix, blockMax };
}

/** The one event that an item is, or the longest of those that it stands for: [start, end], or null. */
export function longestIn({ starts, ends, counts, longest }, item) {
  if (!counts || counts[item] === 1) return [starts[item], ends[item]];
  return longest && [longest.starts[item], longest.ends[item]];
}

/** How long an item is, in the time of its recording. */
export function lengthOf({ starts, ends, clock }, item) {
  return clock ? clock.ownOf(ends[item]) - clock.ownOf(starts[item]) : ends[item] - starts[item];
}

/** How much of an item lies in [t0, t1). */
export function lengthWithin({ starts, ends, clock }, item, t0, t1) {
  const from = Math.max(starts[item], t0);
  const to = Math.min(ends[item], t1);
  return clock ? clock.ownOf(to) - clock.ownOf(from) : to - from;
}

/** Busy time before the instant `t`, given the number of items that start before it. */
export function busyBefore(channel, started, t) {
  if (started === 0) return 0;
  const { ends, busy, prefix } = channel;
  const last = started - 1;
  if (t >= ends[last]) return prefix[started];
  const duration = lengthOf(channel, last);
  const passed = Math.min(lengthWithin(channel, last, -Infinity, t), duration);
  const part = busy && duration > 0 ? (passed * busy[last]) / duration : passed;
  return prefix[last] + part;
}

/** The places [first, last) of the items with a part in [t0, t1); instants count as inside. */
export function itemsBetween(channel, t0, t1) {
  const first = lowerBound(channel.ends, t0, 0, channel.n);
  const begin = first < channel.n && channel.ends[first] === t0 && channel.starts[first] < t0 ? first + 1 : first;
  return [begin, lowerBound(channel.starts, t1, begin, channel.n)];
}

/** How many events the items [first, last) stand for. */
export function countEvents(channel, first, last) {
  if (!channel.counts) return Math.max(0, last - first);
  let total = 0;
  for (let i = first; i < last; i++) total += channel.counts[i];
  return total;
}

/** The item nearest to `t`, at most `tolerance` away: [item, distance] or null. */
export function nearestItem(channel, t, tolerance) {
  const { starts, ends, n } = channel;
  const before = upperBound(starts, t, 0, n) - 1;
  let best = null;
  for (let i = Math.max(0, before); i <= before + 1 && i < n; i++) {
    const distance = t < starts[i] ? starts[i] - t : t > ends[i] ? t - ends[i] : 0;
    if (distance <= tolerance && (best === null || distance < best[1])) best = [i, distance];
  }
  return best;
}
