import { lowerBound, upperBound } from "./bisect.mjs";
import { areMeant } from "./matching.mjs";
import { countEvents, itemsBetween, lengthOf, lengthWithin, nearestItem } from "./channel.mjs";
import { ownTime } from "./clock.mjs";

/** Questions about events: what is here, what belongs together, what a span adds up to. */

/** The event of `row` nearest to `t`, at most `tolerance` ns away: {row, channel, item} or null. */
export function pickEvent(trace, row, t, tolerance) {
  let best = null;
  trace.rows[row].channels.forEach((channel, place) => {
    const near = nearestItem(channel, t, tolerance);
    if (near && (!best || near[1] < best.distance)) best = { row, channel: place, item: near[0], distance: near[1] };
  });
  return best && { row: best.row, channel: best.channel, item: best.item };
}

/** Everything known of an event, times by its own clock; `bytes` and `correlation` are null where not known. */
export function describeEvent(trace, { row, channel: place, item }) {
  const channel = trace.rows[row].channels[place];
  const { starts, ends, names, bytes, correlations, busy, counts, clock, category } = channel;
  const count = counts ? counts[item] : 1;
  const together = count > 1 ? `${count} short events` : null;
  return {
    name: together ?? trace.names[names[item]],
    short: together ?? trace.shorts[names[item]],
    category,
    count,
    start: ownTime(clock, starts[item]),
    end: ownTime(clock, ends[item]),
    busy: busy ? busy[item] : lengthOf(channel, item),
    bytes: bytes && bytes[item] >= 0 ? bytes[item] : null,
    correlation: correlations && correlations[item] >= 0 && count === 1 ? correlations[item] : null,
    kind: trace.rows[row].kind,
  };
}

/** How many items of a row have a part in [t0, t1), and how many events they stand for. */
export function countInside(trace, row, t0, t1) {
  let items = 0;
  let events = 0;
  for (const channel of trace.rows[row].channels) {
    const [first, last] = itemsBetween(channel, t0, t1);
    items += Math.max(0, last - first);
    events += countEvents(channel, first, last);
  }
  return { items, events };
}

/** The launch of a device event, or the first device event of a launch; same process. */
export function findPartner(trace, event) {
  const channel = trace.rows[event.row].channels[event.channel];
  const correlation = channel.correlations ? channel.correlations[event.item] : -1;
  if (correlation < 0 || (channel.counts && channel.counts[event.item] > 1)) return null;
  const { kind, group } = trace.rows[event.row];
  const wanted = kind === "gpu" ? "api" : "gpu";
  const { process } = trace.groups[group];
  for (let row = 0; row < trace.rows.length; row++) {
    const other = trace.rows[row];
    if (other.kind !== wanted || trace.groups[other.group].process !== process) continue;
    for (let place = 0; place < other.channels.length; place++) {
      const item = other.channels[place].correlations?.indexOf(correlation) ?? -1;
      if (item >= 0) return { row, channel: place, item };
    }
  }
  return null;
}

/** The names of the ranges that enclose the launch of an event, outermost first. */
export function enclosingRanges(trace, event, partner) {
  const host = trace.rows[event.row].kind === "gpu" ? partner : event;
  if (!host || trace.rows[host.row].kind === "range") return [];
  const t = trace.rows[host.row].channels[host.channel].starts[host.item];
  const names = [];
  for (const row of trace.groups[trace.rows[host.row].group].rows) {
    if (trace.rows[row].kind !== "range") continue;
    for (const { starts, ends, counts, names: ids, n } of trace.rows[row].channels) {
      const item = upperBound(starts, t, 0, n) - 1;
      if (item >= 0 && t < ends[item] && !(counts && counts[item] > 1)) names.push(trace.names[ids[item]]);
    }
  }
  return names;
}

/** Sums over [t0, t1): per category and per name, clipped to the span, bytes pro rata. */
export function sumSpan(trace, rows, t0, t1) {
  const categories = new Map();
  const times = new Float64Array(trace.names.length + 1);
  const numbers = new Float64Array(trace.names.length + 1);
  const merged = trace.names.length;
  let count = 0;
  for (const row of rows) {
    for (const channel of trace.rows[row].channels) {
      const sum = categories.get(channel.category) ?? { ns: 0, count: 0, bytes: 0 };
      const [first, last] = itemsBetween(channel, t0, t1);
      for (let i = first; i < last; i++) {
        const part = share(channel, i, t0, t1);
        const events = channel.counts ? channel.counts[i] : 1;
        const name = events > 1 ? merged : channel.names[i];
        sum.ns += part.ns;
        sum.count += events;
        sum.bytes += part.bytes;
        times[name] += part.ns;
        numbers[name] += events;
        count += events;
      }
      if (last > first) categories.set(channel.category, sum);
    }
  }
  return { categories, count, top: topNames(trace, times, numbers) };
}

function share(channel, i, t0, t1) {
  const { busy, bytes } = channel;
  const whole = lengthOf(channel, i);
  const inside = lengthWithin(channel, i, t0, t1);
  const ratio = whole > 0 ? inside / whole : 1;
  return {
    ns: busy ? busy[i] * ratio : inside,
    bytes: bytes && bytes[i] > 0 ? bytes[i] * ratio : 0,
  };
}

function topNames(trace, times, numbers, limit = 8) {
  const places = [];
  for (let i = 0; i < numbers.length; i++) if (numbers[i] > 0) places.push(i);
  places.sort((a, b) => times[b] - times[a]);
  return places.slice(0, limit).map((i) => ({
    name: trace.names[i] ?? "(merged short events)",
    ns: times[i],
    count: numbers[i],
  }));
}

/** The first match after `t` (direction 1) or before it (-1) in any row, or null. */
export function nextMatch(trace, matches, t, direction) {
  let best = null;
  trace.rows.forEach((own, row) => {
    if (!areMeant(matches, own)) return;
    own.channels.forEach((channel, place) => {
      const item = nextInChannel(channel, matches.names, t, direction);
      if (item < 0) return;
      const start = channel.starts[item];
      if (!best || (start - best.start) * direction < 0) best = { row, channel: place, item, start };
    });
  });
  return best && { row: best.row, channel: best.channel, item: best.item };
}

function nextInChannel({ starts, names, counts, n }, wanted, t, direction) {
  let i = direction > 0 ? upperBound(starts, t, 0, n) : lowerBound(starts, t, 0, n) - 1;
  while (i >= 0 && i < n && (!wanted[names[i]] || (counts && counts[i] > 1))) i += direction;
  return i < n ? i : -1;
}
