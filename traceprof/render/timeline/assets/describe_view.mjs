import { fact, factsPart, notePart, tablePart } from "./contents.mjs";
import { formatCount, formatDuration, formatPercent } from "./format.mjs";
import { isPartly, partsOfSpan, recordedOfSpan, recordedShare } from "./states_of_span.mjs";
import { deviceName } from "./describe_event.mjs";
import { idleWithin, ownGap, sharedIdle } from "./gaps.mjs";
import { unionsByName } from "./unions.mjs";
import { lengthOfTarget } from "./targets.mjs";
import { spanParts, viewName } from "./beside.mjs";
import { spansOfSteps } from "./steps.mjs";

/** What the panel says while nothing is chosen: the devices in the view, and their longest gaps. */

const HINT =
  "Click an event, a gap, a state, or a step for details. Shift + click a second one to measure between the two. " +
  "Shift + drag to select a time span. Press ? for all keys.";
const MAX_DEVICES = 64;

export function viewContent(app) {
  const { trace } = app;
  const from = Math.max(0, app.t0);
  const to = Math.min(trace.duration_ns, app.t1);
  const places = trace.groups.flatMap(({ states }, place) => (states ? [place] : []));
  const parts = [notePart(HINT), ...(app.notes.part ? [app.notes.part] : [])];
  if (trace.beside) parts.push(...spanParts(app, from, to));
  if (places.length && to > from) parts.push(gapsPart(trace, places, from, to));
  if (!places.length) parts.push(...rangesPart(trace, from, to));
  if (trace.steps.starts.length) parts.push(factsPart("", [fact("steps", stepsInView(trace, from, to))]));
  return { title: `In view: ${viewName(trace, from, to)}`, target: null, parts };
}

/** Without a device: what ranges, or else operators and calls, take of the view. */
function rangesPart(trace, from, to) {
  const first = ["range", "host_op", "api"].map((kind) => trace.rows.flatMap((own, row) => (own.kind === kind ? [row] : [])));
  const rows = first.find((found) => found.some((row) => trace.rows[row].channels.some(({ n }) => n > 0)));
  if (!rows || to <= from) return [];
  const found = unionsByName(trace, rows, from, to).slice(0, MAX_DEVICES);
  const cells = ({ key, ns, count }) => [key, formatPercent(ns / (to - from)), formatDuration(ns), formatCount(count)];
  const caption = "CPU time in view (click a row to go to the longest)";
  const listed = found.map((entry) => ({ cells: cells(entry), target: entry.event }));
  const length = factsPart("", [fact("duration", formatDuration(to - from))]);
  return [length, tablePart(caption, ["Name", "Share", "Time", "Count"], listed)];
}

function gapsPart(trace, places, from, to) {
  const isCut = places.length > MAX_DEVICES;
  const partly = isPartly(trace, places, from, to);
  const devices = places.map((place) => ({ place, idle: idleShare(trace, place, from, to) }));
  const shared = sharedIdle(trace, from, to);
  const lengthOf = (gap) => (gap ? lengthOfTarget(trace, gap) : 0);
  if (shared) for (const device of devices) device.own = ownGap(trace, device.place, from, to, shared);
  if (isCut) devices.sort((a, b) => lengthOf(b.own) - lengthOf(a.own) || b.idle - a.idle);
  const rows = devices.slice(0, MAX_DEVICES).map(({ place, idle, own }) => {
    const gap = idleWithin(trace, place, from, to);
    const gaps = [gap, ...(shared ? [own] : [])].map((target) => (target ? formatDuration(lengthOf(target)) : "–"));
    const known = partly ? [recordedShare(trace, place, from, to)] : [];
    return { cells: [deviceName(trace, place), formatShare(idle), ...gaps, ...known.map(formatShare)], target: own ?? gap };
  });
  const more = isCut ? `; the ${MAX_DEVICES} of ${places.length} GPUs that idle alone for the longest` : "";
  const header = ["GPU", "Idle", "Longest gap", ...(shared ? ["Idle alone"] : []), ...(partly ? ["Recorded"] : [])];
  const about = shared ? ["", "", "", "The gap in which most other GPUs work for the longest"] : null;
  const way = shared ? "the gap in which most others work, or else to the longest gap" : "the longest gap";
  return tablePart(`GPUs in view (click a row to go to ${way})${more}`, header, rows, about ? { about } : {});
}

const formatShare = (share) => (Number.isFinite(share) ? formatPercent(share) : "–");

const idleShare = (trace, place, from, to) =>
  (partsOfSpan(trace, place, from, to).get(trace.states.at(-1)) ?? 0) / recordedOfSpan(trace, place, from, to);

function stepsInView(trace, from, to) {
  const { starts, ends } = spansOfSteps(trace);
  const inside = starts.filter((start, i) => start < to && ends[i] > from).length;
  return `${inside} of ${starts.length} in view`;
}
