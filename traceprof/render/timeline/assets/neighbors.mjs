import { lowerBound, upperBound } from "./bisect.mjs";

/** What lies before, after and around something, in the lanes that it concerns. */

/** The last event of `rows` that ends at `t` or before, or null. */
export function lastBefore(trace, rows, t) {
  let best = null;
  for (const row of rows) {
    trace.rows[row].channels.forEach(({ ends, n }, channel) => {
      const item = upperBound(ends, t, 0, n) - 1;
      if (item >= 0 && (!best || ends[item] > best.time)) best = { row, channel, item, time: ends[item] };
    });
  }
  return best && { row: best.row, channel: best.channel, item: best.item };
}

/** The first event of `rows` that starts at `t` or after, or null. */
export function firstAfter(trace, rows, t) {
  let best = null;
  for (const row of rows) {
    trace.rows[row].channels.forEach(({ starts, n }, channel) => {
      const item = lowerBound(starts, t, 0, n);
      if (item < n && (!best || starts[item] < best.time)) best = { row, channel, item, time: starts[item] };
    });
  }
  return best && { row: best.row, channel: best.channel, item: best.item };
}

/** The events before and after an event in its lane: [target or null, target or null]. */
export function neighborsOf(trace, { row, channel, item }) {
  const start = trace.rows[row].channels[channel].starts[item];
  let before = null;
  let after = null;
  trace.rows[row].channels.forEach(({ starts, n }, place) => {
    const own = place === channel;
    const previous = own ? item - 1 : lowerBound(starts, start, 0, n) - 1;
    const next = own ? item + 1 : lowerBound(starts, start, 0, n);
    if (previous >= 0 && (!before || starts[previous] > before.time)) {
      before = { row, channel: place, item: previous, time: starts[previous] };
    }
    if (next < n && (!after || starts[next] < after.time)) after = { row, channel: place, item: next, time: starts[next] };
  });
  return [before, after];
}

/** The events of a row kind of one process that are open at `t`: per group, the outermost first. */
export function openAt(trace, process, t, kinds) {
  const found = [];
  trace.groups.forEach((group, place) => {
    if (group.process !== process) return;
    const events = [];
    for (const row of group.rows) {
      if (!kinds.has(trace.rows[row].kind)) continue;
      trace.rows[row].channels.forEach(({ starts, ends, counts, n }, channel) => {
        const item = upperBound(starts, t, 0, n) - 1;
        if (item >= 0 && t < ends[item] && !(counts && counts[item] > 1)) events.push({ row, channel, item });
      });
    }
    if (events.length) found.push({ group: place, events });
  });
  return found;
}

/** The first start or end of an event of `rows` after `t` (direction 1), or the last before it. */
export function nextEdge(trace, rows, t, direction) {
  let best = null;
  for (const row of rows) {
    for (const { starts, ends, n } of trace.rows[row].channels) {
      for (const edges of [starts, ends]) {
        const place = direction > 0 ? upperBound(edges, t, 0, n) : lowerBound(edges, t, 0, n) - 1;
        const edge = edges[place];
        if (edge !== undefined && (best === null || (edge - best) * direction < 0)) best = edge;
      }
    }
  }
  return best;
}
