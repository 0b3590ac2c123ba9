import { fact, factsPart, notePart, tablePart } from "./contents.mjs";
import { formatDuration, formatPercent } from "./format.mjs";
import { isPartly, partsOfSpan, recordedOfSpan, recordedShare } from "./states_of_span.mjs";
import { deviceName } from "./describe_event.mjs";
import { idleWithin } from "./gaps.mjs";
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
  if (trace.steps.starts.length) parts.push(factsPart("", [fact("steps", stepsInView(trace, from, to))]));
  return { title: `In view: ${viewName(trace, from, to)}`, target: null, parts };
}

function gapsPart(trace, places, from, to) {
  const isCut = places.length > MAX_DEVICES;
  const partly = isPartly(trace, places, from, to);
  const devices = places.map((place) => ({ place, idle: idleShare(trace, place, from, to) }));
  if (isCut) devices.sort((a, b) => b.idle - a.idle);
  const rows = devices.slice(0, MAX_DEVICES).map(({ place, idle }) => {
    const gap = idleWithin(trace, place, from, to);
    const longest = gap ? formatDuration(lengthOfTarget(trace, gap)) : "–";
    const known = partly ? [recordedShare(trace, place, from, to)] : [];
    return { cells: [deviceName(trace, place), formatShare(idle), longest, ...known.map(formatShare)], target: gap };
  });
  const more = isCut ? `; the ${MAX_DEVICES} of ${places.length} GPUs with the most idle time` : "";
  const header = ["GPU", "Idle", "Longest gap", ...(partly ? ["Recorded"] : [])];
  return tablePart(`GPUs in view (click a row to go to the longest gap)${more}`, header, rows);
}

const formatShare = (share) => (Number.isFinite(share) ? formatPercent(share) : "–");

const idleShare = (trace, place, from, to) =>
  (partsOfSpan(trace, place, from, to).get(trace.states.at(-1)) ?? 0) / recordedOfSpan(trace, place, from, to);

function stepsInView(trace, from, to) {
  const { starts, ends } = spansOfSteps(trace);
  const inside = starts.filter((start, i) => start < to && ends[i] > from).length;
  return `${inside} of ${starts.length} in view`;
}
