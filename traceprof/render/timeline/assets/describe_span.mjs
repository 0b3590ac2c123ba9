import { GROUPINGS, keyFunction } from "./groupings.mjs";
import { fact, factsPart, notePart, tablePart } from "./contents.mjs";
import { deviceName, signed, titleOf } from "./describe_event.mjs";
import { formatBytes, formatCount, formatDuration, formatExact, formatPercent, formatRate } from "./format.mjs";
import { idleWithin } from "./gaps.mjs";
import { launchedParts } from "./launched.mjs";
import { isPartly, partsOfSpan, recordedOfSpan, recordedShare, stateColumns } from "./states_of_span.mjs";
import { MERGED, unionsBy } from "./unions.mjs";
import { sideFacts, spanParts, viewName } from "./beside.mjs";
import { groupOf, spanOf, timesOf } from "./targets.mjs";
import { stepsOfSpan } from "./steps.mjs";
import { sumSpan } from "./query.mjs";

/** What a selected span adds up to: per device and on average, then by name, range, thread or lane. */

const MAX_ROWS = 40;

/** `launcher`: the event of the host whose span it is; what it launched may run later. */
export function spanContent(app, [t0, t1], between = null, launcher = null) {
  const { trace } = app;
  const places = trace.groups.flatMap(({ states }, place) => (states ? [place] : []));
  const parts = [
    factsPart("", [
      ...spanFacts(trace, t0, t1),
      ...(between ? betweenFacts(trace, between) : []),
    ]),
  ];
  if (trace.beside) parts.push(...spanParts(app, t0, t1));
  if (launcher) parts.push(...launchedParts(trace, launcher));
  if (places.length) parts.push(devicesPart(trace, places, t0, t1));
  const copies = copiesPart(trace, t0, t1);
  if (copies) parts.push(copies);
  parts.push(...pivotParts(app, places, t0, t1));
  if (app.isPartial) parts.push(notePart("Times by name cover only the loaded events. The tables below the timeline are exact."));
  return { title: `Selection: ${viewName(trace, t0, t1)}`, target: null, parts };
}

function spanFacts(trace, t0, t1) {
  if (trace.beside) return sideFacts(trace, t0, t1);
  return [
    fact("from", formatExact(Math.round(t0) + trace.offset_ns)),
    fact("to", formatExact(Math.round(t1) + trace.offset_ns)),
    stepsFact(trace, t0, t1),
  ];
}

function stepsFact(trace, t0, t1) {
  const found = stepsOfSpan(trace, t0, t1);
  if (!found) return null;
  const { first, last, isWhole, text } = found;
  return fact("steps", `${isWhole ? "" : "part of "}${text}${last > first ? ` (${formatCount(last - first + 1)})` : ""}`);
}

/** The three distances between two events that people ask for. */
function betweenFacts(trace, [first, second]) {
  const isOneClock = groupClock(trace, first) === groupClock(trace, second);
  const [a0, a1] = isOneClock ? timesOf(trace, first) : spanOf(trace, first);
  const [b0, b1] = isOneClock ? timesOf(trace, second) : spanOf(trace, second);
  const name = (target) => (target.row !== undefined && !target.gap ? titleOf(trace, target) : "gap or state");
  return [
    fact("first", name(first), first),
    fact("second", name(second), second),
    fact("end → start", b0 >= a1 ? formatExact(b0 - a1) : `${signed(b0 - a1)} (they overlap)`),
    fact("start → start", formatExact(b0 - a0)),
    fact("end → end", formatExact(b1 - a1)),
  ];
}

const groupClock = (trace, target) => trace.groups[groupOf(trace, target)].clock;

function devicesPart(trace, places, t0, t1) {
  const columns = stateColumns(trace);
  const categories = columns.map(({ category }) => category);
  const partly = isPartly(trace, places, t0, t1);
  const known = (shares) => (partly ? [formatPercent(shares.reduce((sum, share) => sum + share, 0) / shares.length)] : []);
  const each = places.map((place) => sharesOfSpan(trace, place, t0, t1));
  const shareOf = (parts, category) => formatPercent(parts.get(category) ?? 0);
  const rows = places.map((place, i) => ({
    cells: [
      deviceName(trace, place),
      ...categories.map((category) => shareOf(each[i], category)),
      ...known([recordedShare(trace, place, t0, t1)]),
    ],
    target: idleWithin(trace, place, t0, t1),
  }));
  if (places.length > 1) {
    const mean = new Map(categories.map((c) => [c, each.reduce((sum, parts) => sum + (parts.get(c) ?? 0), 0) / places.length]));
    const shares = places.map((place) => recordedShare(trace, place, t0, t1));
    const cells = [`mean of ${places.length}`, ...categories.map((category) => shareOf(mean, category)), ...known(shares)];
    rows.unshift({ cells, target: null });
  }
  const header = ["GPU", ...columns.map(({ title }) => title), ...(partly ? ["Recorded"] : [])];
  const caption = "GPU time (the shares add up to 100%)";
  return tablePart(caption, header, rows.slice(0, 65), { about: ["", ...columns.map(({ about }) => about)] });
}

/** The part that each state has of the span, as far as the recording has a part in it. */
function sharesOfSpan(trace, place, t0, t1) {
  const whole = Math.max(1, recordedOfSpan(trace, place, t0, t1));
  return new Map([...partsOfSpan(trace, place, t0, t1)].map(([category, ns]) => [category, ns / whole]));
}

function copiesPart(trace, t0, t1) {
  const rows = trace.rows.flatMap(({ kind }, row) => (kind === "gpu" ? [row] : []));
  const { categories } = sumSpan(trace, rows, t0, t1);
  const found = [...categories].filter(([, sum]) => sum.bytes > 0);
  if (!found.length) return null;
  const cells = found.map(([category, { bytes, count, ns }]) => ({
    cells: [trace.categories[category].label, formatCount(count), formatBytes(bytes), ns > 0 ? formatRate(bytes, ns) : "–"],
  }));
  return tablePart("Copies on all GPUs (partial copies count pro rata)", ["Kind", "Count", "Bytes", "Rate"], cells);
}

function pivotParts(app, places, t0, t1) {
  const { trace } = app;
  if (trace.beside) return [];
  const key = keyFunction(trace, app.grouping);
  const choose = GROUPINGS.map(([name, label]) => ({ label, isOn: app.grouping === name, act: () => app.groupBy(name) }));
  const [, label] = GROUPINGS.find(([name]) => name === app.grouping);
  const host = trace.rows.flatMap(({ kind }, row) => (kind === "gpu" || kind === "step" ? [] : [row]));
  const parts = [{ type: "choice", caption: "Group by", choices: choose }];
  const devices = places.map((place) => unionsBy(trace, trace.groups[place].rows, t0, t1, key));
  if (devices.some((found) => found.length)) {
    const of = places.length > 1 ? `, mean of ${places.length} GPUs` : "";
    parts.push(namesPart(label, `GPU: activity in the selection${of}`, joined(devices), places.length, t0, t1));
  }
  const own = unionsBy(trace, host, t0, t1, key);
  if (own.length) parts.push(namesPart(label, "CPU: time covered, all threads", own, 1, t0, t1));
  return parts;
}

/** The same keys of several devices as one row each: the sum of their times, all their durations. */
function joined(devices) {
  const found = new Map();
  for (const { key, ns, count, durations, event } of devices.flat()) {
    const entry = found.get(key) ?? { key, ns: 0, count: 0, durations: [], event };
    entry.ns += ns;
    entry.count += count;
    for (const duration of durations) entry.durations.push(duration);
    found.set(key, entry);
  }
  const rows = [...found.values()].map((entry) => ({ ...entry, durations: Float64Array.from(entry.durations).sort() }));
  return rows.sort((a, b) => b.ns - a.ns);
}

function namesPart(label, caption, found, n, t0, t1) {
  const rows = found.slice(0, MAX_ROWS).map(({ key, ns, count, durations, event }) => ({
    cells: [key, formatPercent(ns / n / (t1 - t0)), formatDuration(ns / n), formatCount(count), ...spread(key, durations)],
    target: event,
  }));
  const more = found.length > MAX_ROWS ? ` (first ${MAX_ROWS} of ${formatCount(found.length)})` : "";
  return tablePart(caption + more, [label, "Share", "Time", "Count", "Min", "Median", "Max"], rows);
}

function spread(key, durations) {
  if (key === MERGED || !durations.length) return ["–", "–", "–"];
  const middle = Math.floor(durations.length / 2);
  const median = durations.length % 2 ? durations[middle] : (durations[middle - 1] + durations[middle]) / 2;
  return [durations[0], median, durations.at(-1)].map(formatDuration);
}
