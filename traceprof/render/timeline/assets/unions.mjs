import { itemsBetween, lengthOf, lengthWithin } from "./channel.mjs";
import { alikeKey } from "./groupings.mjs";
import { ownTime } from "./clock.mjs";

/** How long each thing is there within a span: never longer than the span, however it nests. */

export const MERGED = "(merged short events)";

export const unionsByName = (trace, rows, t0, t1) => unionsBy(trace, rows, t0, t1, alikeKey(trace));

/**
 * [{key, ns, count, durations, event}, …], the longest first; `keyOf(row, channel, item)` says
 * what belongs together, `event` is the one with the longest part inside. `durations` are those of
 * the parts inside, sorted. Items that stand for several events go by `MERGED`.
 */
export function unionsBy(trace, rows, t0, t1, keyOf) {
  const found = new Map();
  for (const row of rows) {
    trace.rows[row].channels.forEach((channel, number) => {
      const [first, last] = itemsBetween(channel, t0, t1);
      for (let item = first; item < last; item++) {
        const isMerged = channel.counts && channel.counts[item] > 1;
        const entry = entryOf(found, isMerged ? MERGED : keyOf(row, number, item), row);
        if (isMerged) addMerged(entry, channel, item, t0, t1);
        else addEvent(entry, channel, { row, channel: number, item }, t0, t1);
      }
    });
  }
  return [...found.values()].map(finishEntry).sort((a, b) => b.ns - a.ns);
}

function entryOf(found, key, row) {
  let entry = found.get(key);
  if (!entry) {
    const lists = { starts: [], ends: [], durations: [] };
    found.set(key, (entry = { key, row, isOneLane: true, count: 0, merged: 0, event: null, most: -1, ...lists }));
  }
  if (entry.row !== row) entry.isOneLane = false;
  return entry;
}

function addMerged(entry, channel, item, t0, t1) {
  const length = lengthOf(channel, item);
  const inside = lengthWithin(channel, item, t0, t1);
  entry.count += channel.counts[item];
  entry.merged += length > 0 ? (channel.busy[item] * inside) / length : 0;
}

function addEvent(entry, channel, event, t0, t1) {
  const { starts, ends, clock } = channel;
  const from = ownTime(clock, Math.max(starts[event.item], t0));
  const to = ownTime(clock, Math.min(ends[event.item], t1));
  entry.count += 1;
  entry.starts.push(from);
  entry.ends.push(to);
  entry.durations.push(to - from);
  if (to - from > entry.most) Object.assign(entry, { most: to - from, event });
}

/** One lane holds no overlaps, so there the union is the sum. */
function finishEntry({ key, count, merged, isOneLane, starts, ends, durations, event }) {
  const ns = isOneLane ? starts.reduce((sum, start, i) => sum + ends[i] - start, 0) : unionOf(starts, ends);
  return { key, count, event, ns: ns + merged, durations: Float64Array.from(durations).sort() };
}

/** The length of the union of intervals. */
export function unionOf(starts, ends) {
  const order = Uint32Array.from(starts, (_, i) => i).sort((a, b) => starts[a] - starts[b]);
  let total = 0;
  let until = -Infinity;
  for (const i of order) {
    if (ends[i] <= until) continue;
    total += ends[i] - Math.max(starts[i], until);
    until = ends[i];
  }
  return total;
}
