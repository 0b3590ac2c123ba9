import { busyBefore, itemsBetween } from "./channel.mjs";
import { fact, factsPart, notePart, tablePart } from "./contents.mjs";
import { formatCount, formatDuration, formatExact, formatPercent } from "./format.mjs";
import { partsOfSpan, stateColumns } from "./states_of_span.mjs";
import { idleWithin } from "./gaps.mjs";
import { lowerBound } from "./bisect.mjs";
import { alikeKey } from "./groupings.mjs";
import { stepsOfSpan } from "./steps.mjs";
import { ownLength, ownTime } from "./clock.mjs";
import { unionsBy } from "./unions.mjs";

/** Two recordings on one axis: what differs in a span, and where the same is in the other one. */

const MOST_DIFFERENCES = 40;
const MOST_PAIRS_IN_FULL = 4;
const MOST_ITEMS_BY_NAME = 400_000;

/** "+1.200 ms (+10.0 %)": how much more the second is than the first. */
export function gained(first, second) {
  const by = second - first;
  if (by === 0) return "no change";
  const sign = by > 0 ? "+" : "−";
  const percent = formatPercent(Math.abs(by) / first);
  const part = first > 0 ? ` (${/[1-9]/.test(percent) ? sign : ""}${percent})` : "";
  return `${sign}${formatDuration(Math.abs(by))}${part}`;
}

const sideNames = (trace) => trace.beside.sides.map(({ name }) => name);

const tableHead = (trace, first) => {
  const [a, b] = sideNames(trace);
  return [first, a, b, differenceName(trace), "%"];
};

/** "B − A"; of longer names just what it is. */
function differenceName(trace) {
  const [a, b] = sideNames(trace);
  return a.length + b.length > 6 ? "Change" : `${b} − ${a}`;
}

/** What a span is called: its length, and its steps where it is made of these; on a common axis always. */
export function viewName(trace, from, to) {
  const steps = stepsOfSpan(trace, from, to);
  if (!trace.beside) return (steps?.isExactly ? `${steps.text}, ` : "") + formatDuration(to - from);
  if (steps) return (steps.isWhole ? "" : "part of ") + steps.text;
  const own = trace.beside.sides.map(({ name, clock }) => `${name} ${formatDuration(ownLength(clock, [from, to]))}`);
  return own.join(", ");
}

/** How long the span is in each recording, and from when. */
export function sideFacts(trace, from, to) {
  const lengths = trace.beside.sides.map(({ clock }) => ownLength(clock, [from, to]));
  const own = trace.beside.sides.map(({ name, title, clock }, i) => {
    const start = Math.round(ownTime(clock, from) + clock.offset_ns);
    const span = `${formatExact(Math.round(lengths[i]))}, starting at ${formatDuration(start)}`;
    return fact(title ? `${name}: ${title}` : name, span);
  });
  const facts = [...own, fact(differenceName(trace), gained(...lengths.map(Math.round)))];
  const counts = trace.beside.sides.map(({ steps }) => steps.filter((step, i) => step && inSpan(trace, i, from, to)).length);
  const isUnequal = trace.steps.starts.length && counts[0] !== counts[1];
  if (isUnequal) facts.push(fact("steps", `${counts.join(" and ")} (the amount of work differs)`));
  return facts;
}

const inSpan = ({ steps: { starts, ends } }, i, from, to) => ends[i] > from && starts[i] < to;

/** What differs between the two in a span: devices, lanes, work by name, ranges of the host. */
export function spanParts(app, from, to) {
  const { trace } = app;
  const parts = [factsPart("", sideFacts(trace, from, to))];
  parts.push(...deviceTables(trace, from, to));
  if (countItems(trace, from, to) > MOST_ITEMS_BY_NAME) {
    parts.push(notePart("This time span is too long for differences by name. Zoom in or select a shorter span."));
  } else {
    const devicesOf = (place) => trace.groups[place].kind === "device";
    parts.push(namesTable(trace, "GPU activity, largest difference first", ["gpu"], devicesOf, from, to));
    const ranges = "CPU ranges, largest difference first";
    parts.push(namesTable(trace, ranges, ["range", "collective"], (place) => !devicesOf(place), from, to));
  }
  const lanes = laneRows(trace, from, to);
  if (lanes.length) parts.push(tablePart("Busy time of each lane", tableHead(trace, "Lane"), lanes));
  return parts.filter(Boolean);
}

function countItems(trace, from, to) {
  let count = 0;
  for (const { channels } of trace.rows) {
    for (const channel of channels) {
      const [first, last] = itemsBetween(channel, from, to);
      count += Math.max(0, last - first);
    }
  }
  return count;
}

/** Devices of the first recording that have a counterpart: [[group, group], …]. */
const devicePairs = (trace) =>
  trace.groups.flatMap(({ states, side, partner }, place) => (states && side === 0 && partner >= 0 ? [[place, partner]] : []));

/** Busy, idle and what it is made of, for each pair of devices; of many only busy and idle. */
function deviceTables(trace, from, to) {
  const pairs = devicePairs(trace);
  if (pairs.length <= MOST_PAIRS_IN_FULL) {
    const header = tableHead(trace, "GPU time");
    return pairs.map((pair) => tablePart(trace.groups[pair[0]].section, header, deviceRows(trace, pair, from, to)));
  }
  const rows = pairs.flatMap((pair) => {
    const [busy, idle] = deviceRows(trace, pair, from, to);
    const { section } = trace.groups[pair[0]];
    const named = ({ cells: [what, ...cells], target }) => ({ cells: [`${section}: ${what}`, ...cells], target });
    return [named(busy), named(idle)];
  });
  return [tablePart("GPU activity", tableHead(trace, "GPU"), rows)];
}

function deviceRows(trace, [first, second], from, to) {
  const idle = trace.states.at(-1);
  const [, ...others] = stateColumns(trace);
  const parts = [first, second].map((place) => partsOfSpan(trace, place, from, to));
  const of = (category) => parts.map((found) => found.get(category) ?? 0);
  const isBusy = ([category]) => category !== idle && category !== trace.not_recorded;
  const busy = parts.map((found) => [...found].filter(isBusy).reduce((sum, [, ns]) => sum + ns, 0));
  const gap = idleWithin(trace, second, from, to) ?? idleWithin(trace, first, from, to);
  const made = others.map(({ category, about }) => [about, of(category)]).filter(([, [a, b]]) => a || b);
  return [["busy", busy], ["idle", of(idle), gap], ...made].map(([what, [a, b], target]) => comparedRow(what, a, b, target));
}

function comparedRow(label, a, b, target = null) {
  const [by, part = ""] = gained(Math.round(a), Math.round(b)).split(" (");
  return { cells: [label, formatDuration(a), formatDuration(b), by, part.replace(")", "")], target };
}

function laneRows(trace, from, to) {
  const found = [];
  trace.groups.forEach(({ side, partner, section, rows }) => {
    if (side !== 0 || !(partner >= 0)) return;
    const others = new Map(trace.groups[partner].rows.map((row) => [laneKind(trace, row), row]));
    for (const row of rows) {
      const other = others.get(laneKind(trace, row));
      if (other === undefined) continue;
      const [a, b] = [row, other].map((place) => busyOf(trace, place, from, to));
      if (a || b) found.push({ label: `${section} › ${trace.rows[row].label}`, a, b });
    }
  });
  found.sort((one, two) => Math.abs(two.b - two.a) - Math.abs(one.b - one.a));
  return found.slice(0, MOST_DIFFERENCES).map(({ label, a, b }) => comparedRow(label, a, b));
}

const laneKind = (trace, row) => `${trace.rows[row].kind}|${trace.rows[row].label}`;

function busyOf(trace, row, from, to) {
  return trace.rows[row].channels.reduce((sum, channel) => {
    const before = (t) => busyBefore(channel, lowerBound(channel.starts, t, 0, channel.n), t);
    return sum + before(to) - before(from);
  }, 0);
}

/** By normalized names: the time of each in the span, the mean over the devices of a recording. */
function namesTable(trace, caption, kinds, belongs, from, to) {
  const keyOf = alikeKey(trace);
  const numbers = [0, 0];
  const found = new Map();
  trace.groups.forEach(({ side, rows }, place) => {
    const own = rows.filter((row) => kinds.includes(trace.rows[row].kind));
    if (side === undefined || !belongs(place) || !own.length) return;
    numbers[side] += 1;
    for (const { key, ns, count, event } of unionsBy(trace, own, from, to, keyOf)) {
      if (!found.has(key)) found.set(key, { ns: [0, 0], count: [0, 0], event });
      found.get(key).ns[side] += ns;
      found.get(key).count[side] += count;
    }
  });
  if (!found.size) return null;
  const isDevice = kinds.includes("gpu");
  const times = [...found].map(([key, { ns, count, event }]) => {
    const [a, b] = isDevice ? ns.map((sum, side) => sum / Math.max(1, numbers[side])) : ns;
    return { key, a, b, count, event };
  });
  times.sort((one, two) => Math.abs(two.b - two.a) - Math.abs(one.b - one.a));
  const rows = times.slice(0, MOST_DIFFERENCES).map(({ key, a, b, count, event }) => {
    const { cells, target } = comparedRow(key, a, b, event);
    return { cells: [...cells, count[0] === count[1] ? formatCount(count[0]) : count.map(formatCount).join(" → ")], target };
  });
  const mean = isDevice && Math.max(...numbers) > 1 ? "; mean of the GPUs" : "";
  const more = times.length > rows.length ? ` (${rows.length} of ${formatCount(times.length)})` : "";
  return tablePart(caption + mean + more, [...tableHead(trace, "Name"), "Count"], rows);
}

/** A step in both recordings: its period, and what each device did in it. */
export function stepParts(trace, { item }) {
  if (!trace.beside) return [];
  const [from, to] = [trace.steps.starts[item], trace.steps.ends[item]];
  const periods = trace.beside.sides.map(({ clock, steps }) => (steps[item] ? ownLength(clock, [from, to]) : null));
  const cells = periods.map((ns) => (ns === null ? "missing" : formatDuration(ns)));
  const [a, b] = periods;
  const isMissing = a === null || b === null;
  const whole = isMissing ? { cells: ["duration", ...cells, "–", ""], target: null } : comparedRow("duration", a, b);
  return [tablePart("This step in both traces", tableHead(trace, "Step"), [whole]), ...deviceTables(trace, from, to)];
}
