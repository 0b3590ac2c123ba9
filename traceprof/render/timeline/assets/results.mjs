import { areMeant } from "./matching.mjs";
import { notePart, tablePart } from "./contents.mjs";
import { formatCount, formatDuration } from "./format.mjs";
import { lengthOf } from "./channel.mjs";
import { lowerBound } from "./bisect.mjs";
import { sinceStart } from "./clock.mjs";

/** What a search found: how many, for how long, and the longest or the first of them. */

export const MAX_RESULTS = 200;

/**
 * {count, ns, names, list: [{row, channel, item, start, end, name}]} of the events of the names, by number;
 * `mergedCount` and `mergedNs` are of those that are drawn together with others.
 */
export function findResults(trace, matches, order) {
  const found = { count: 0, ns: 0, names: new Set(), list: [] };
  trace.rows.forEach((own, row) => {
    if (!areMeant(matches, own)) return;
    own.channels.forEach((channel, number) => scanChannel(channel, matches.names, { row, channel: number }, order, found));
  });
  const list = best(found.list, order).map((event) => ({ ...event, name: nameOf(trace, event) }));
  return { count: found.count, ns: found.ns, ...mergedTotals(trace, matches, found.names), names: found.names.size, list };
}

/** Of merged events nobody knows the kind: they are counted where it is not asked for. */
function mergedTotals({ merged }, { names: wanted, kinds }, names) {
  let [mergedCount, mergedNs] = [0, 0];
  wanted.forEach((is, name) => {
    if (kinds || !is || !merged?.counts[name]) return;
    mergedCount += merged.counts[name];
    mergedNs += merged.ns[name];
    names.add(name);
  });
  return { mergedCount, mergedNs };
}

function scanChannel(channel, wanted, place, order, found) {
  const { starts, ends, names, counts, n } = channel;
  for (let item = 0; item < n; item++) {
    if (!wanted[names[item]] || (counts && counts[item] > 1)) continue;
    found.count++;
    const ns = lengthOf(channel, item);
    found.ns += ns;
    found.names.add(names[item]);
    found.list.push({ ...place, item, start: starts[item], end: ends[item], ns });
    // Kept short on the way: all matches of a large trace would fill the memory.
    if (found.list.length >= 20 * MAX_RESULTS) found.list = best(found.list, order);
  }
}

function best(list, order) {
  const length = lengthIn;
  const compare = order === "first" ? (a, b) => a.start - b.start : (a, b) => length(b) - length(a) || a.start - b.start;
  return list.sort(compare).slice(0, MAX_RESULTS);
}

const nameOf = (trace, { row, channel, item }) => trace.rows[row].channels[channel].names[item];

/** How many matches start before `t`: the place of an event among all in the order of time. */
export function countBefore(trace, matches, t) {
  let count = 0;
  for (const row of trace.rows.filter((own) => areMeant(matches, own))) {
    for (const { starts, names, counts, n } of row.channels) {
      const last = lowerBound(starts, t, 0, n);
      for (let i = 0; i < last; i++) if (matches.names[names[i]] && !(counts && counts[i] > 1)) count++;
    }
  }
  return count;
}

/** The parts that the panel shows of results; `go` leads to one, `sort` asks for another order. */
export function resultParts(app, query, results, order, sort, go) {
  const { trace } = app;
  const { count, ns, names, list, mergedCount = 0, mergedNs = 0 } = results;
  if (query.error) return [notePart(query.error)];
  const also = query.also.length ? ` Also searched for: ${query.also.join(", ")}.` : "";
  const of = names === 1 ? "one name" : `${formatCount(names)} names`;
  const part = count > list.length ? ` The ${order === "first" ? "first" : "longest"} ${list.length}:` : "";
  const all = count + mergedCount;
  const together = `${formatCount(all)} events of ${of}, ${formatDuration(ns + mergedNs)} in total.`;
  const short = mergedCount ? ` ${formatCount(mergedCount)} of them are too short to be listed.` : "";
  const about = all ? together + short : "No event has a matching name.";
  if (!count) return [notePart(about + also)];
  const by = (name, direction) => ({ isOn: order === name, direction, act: () => sort(name) });
  // Of kernels it is told what launched them: that is where one goes on.
  const launchedIn = results.launchedIn ?? null;
  const rows = list.map((event, i) => ({
    cells: [
      trace.shorts[event.name],
      ...(launchedIn ? [launchedIn[i]] : []),
      formatDuration(lengthIn(event)),
      instant(trace, event),
      where(trace, event.row),
    ],
    titles: [trace.names[event.name]],
    target: () => go(event),
    isChosen: isChosenEvent(app, event),
  }));
  const named = launchedIn ? ["Name", "Launched in range"] : ["Name"];
  const header = [...named, "Duration", "Start", "Lane"];
  const sorts = [...named.map(() => null), by("longest", "descending"), by("first", "ascending")];
  const shape = { texts: named.length, isLastText: true, below: launchedIn ? 1 : null, sort: sorts };
  return [tablePart(about + also + part, header, rows, shape)];
}

const MOST_LANES = 20;

/** The ranks and devices that the text names. */
export function laneResults({ groups }, places, go) {
  if (!places.length) return [];
  const rows = places.slice(0, MOST_LANES).map((place) => ({
    cells: [groups[place].section || groups[place].label, groups[place].label],
    target: () => go(place),
  }));
  const more = places.length > MOST_LANES ? ` (the first ${MOST_LANES} of ${formatCount(places.length)})` : "";
  return [tablePart(`Lanes with this name${more}`, ["Process", "Device or thread"], rows, { texts: 2 })];
}

/** "rank 3 › GPU 3 › Stream 20": as short as it can be told apart. */
function where(trace, row) {
  const { group, label } = trace.rows[row];
  const { section, label: groupLabel } = trace.groups[group];
  return [section, groupLabel, label].map((word) => word.split(" · ")[0]).filter(Boolean).join(" › ");
}

const lengthIn = ({ ns, start, end }) => ns ?? end - start;
const instant = (trace, { row, start }) => formatDuration(sinceStart(trace, trace.rows[row].group, start));

/** Whether an event of the list is the one that is chosen. */
export const isChosenEvent = ({ trace, chosen }, { row, start }) =>
  Boolean(chosen) && chosen.row === row && startOf(trace, chosen) === start;

const startOf = (trace, { row, channel, item, gap }) => (gap ? null : trace.rows[row].channels[channel].starts[item]);
