import { chartPart, fact, factsPart, tablePart } from "./contents.mjs";
import { deviceName, laneName, titleOf } from "./describe_event.mjs";
import { findPartner } from "./query.mjs";
import { firstAfter, lastBefore } from "./neighbors.mjs";
import { formatCount, formatDuration, formatExact, formatPercent, ordinal } from "./format.mjs";
import { groupOf, isState, lengthOfTarget, spanOf, timesOf } from "./targets.mjs";
import { partsOfSpan } from "./states_of_span.mjs";
import { isIdleGap } from "./gaps.mjs";
import { lengthOf } from "./channel.mjs";
import { ownLength, sinceStart } from "./clock.mjs";
import { summarize } from "./population.mjs";
import { unionsByName } from "./unions.mjs";

/** A state of a device, an idle gap above all, or a gap between the events of one lane. */

const HOST_KINDS = new Set(["api", "sync", "host_op", "range", "collective", "overhead"]);
const MAX_NAMES = 8;

export function stateContent(app, target) {
  const { trace } = app;
  const [start, end] = spanOf(trace, target);
  const group = groupOf(trace, target);
  const rows = isState(target) ? trace.groups[group].rows : [target.row];
  const category = isState(target) ? categoryOf(trace, target) : null;
  const isIdle = !isState(target) || category === trace.states.at(-1);
  const what = isState(target) ? trace.categories[category].label : "Gap";
  const where = isState(target) ? deviceName(trace, group) : laneName(trace, target.row);
  const facts = [
    fact(isIdle ? "gap" : "state", where),
    fact("start", formatExact(sinceStart(trace, group, start))),
    fact("duration", formatExact(lengthOfTarget(trace, target))),
    ...(isIdle ? edgeFacts(app, rows, start, end) : []),
  ];
  const parts = [factsPart("", facts)];
  if (isState(target) && !target.gap && !app.isPartial) parts.push(...placeParts(trace, target, what));
  if (!isState(target)) parts.push(devicePart(trace, group, start, end));
  if (isIdle) parts.push(hostPart(trace, group, start, end));
  else parts.push(workPart(trace, group, rows, start, end));
  return { title: `${what}: ${formatDuration(lengthOfTarget(trace, target))}`, target, parts: parts.filter(Boolean) };
}

/** A gap of a device is idle time. */
const categoryOf = (trace, { group, channel, gap }) =>
  gap ? trace.states.at(-1) : trace.groups[group].states.channels[channel].category;

/** What ended before the gap, what ends it, and when that was launched. */
function edgeFacts(app, rows, start, end) {
  const { trace } = app;
  const before = lastBefore(trace, rows, start);
  const after = firstAfter(trace, rows, end);
  const unknown = app.isPartial ? "open the lanes of this GPU to see it" : "no event in this page";
  const launch = after && findPartner(trace, after);
  const lead = launch && timesOf(trace, launch)[0] - timesOf(trace, after)[0];
  return [
    fact("before", before ? titleOf(trace, before) : unknown, before),
    fact("after", after ? titleOf(trace, after) : unknown, after),
    launch && fact("launched", `${formatDuration(-lead)} before it starts, ${whenLaunched(trace, launch, start)}`, launch),
  ];
}

function whenLaunched(trace, launch, start) {
  const { clock } = trace.groups[groupOf(trace, launch)];
  const at = ownLength(clock, [start, spanOf(trace, launch)[0]]);
  return at >= 0 ? `${formatDuration(at)} into the gap` : "before the gap starts";
}

function placeParts(trace, target, what) {
  const channel = trace.groups[target.group].states.channels[target.channel];
  const { starts, ends, counts } = channel;
  const isGap = isIdleGap(trace, target);
  const isWhole = (i) => (isGap || (starts[i] > 0 && ends[i] < trace.duration_ns)) && !(counts && counts[i] > 1);
  const durations = ends.map((_, i) => lengthOf(channel, i)).filter((_, i) => isWhole(i)).sort();
  const own = lengthOf(channel, target.item);
  const found = summarize(durations, own);
  if (!found || found.n < 2) return [];
  const rows = [
    fact("position", `${ordinal(found.place)} longest of ${formatCount(found.n)} on this GPU`),
    fact("min, median, max", [found.min, found.median, found.max].map(formatDuration).join(", ")),
  ];
  return [factsPart(`All “${what}” intervals`, rows), chartPart("", { ...found, own })];
}

function devicePart(trace, group, start, end) {
  const parts = [...partsOfSpan(trace, group, start, end)].sort((a, b) => b[1] - a[1]);
  if (!parts.length) return null;
  const rows = parts.map(([category, ns]) => fact(trace.categories[category].label, inGap(ns, trace, group, start, end)));
  return factsPart("GPU during the gap", rows);
}

/** What the threads of the process were in, each name with the part of the gap that it covers. */
function hostPart(trace, group, start, end) {
  const { process } = trace.groups[group];
  const rows = trace.rows.flatMap(({ kind, group: own }, row) =>
    HOST_KINDS.has(kind) && trace.groups[own].process === process ? [row] : [],
  );
  const caption = "CPU during the gap, by time covered";
  return coveredPart(trace, group, caption, rows, start, end, "no activity recorded");
}

const workPart = (trace, group, rows, start, end) => coveredPart(trace, group, "Activity", rows, start, end, "");

function coveredPart(trace, group, caption, rows, start, end, nothing) {
  const found = unionsByName(trace, rows, start, end);
  if (!found.length) return nothing ? factsPart("CPU during the gap", [fact("", nothing)]) : null;
  const cells = found.slice(0, MAX_NAMES).map(({ key, ns, event }) => ({
    cells: [key, event ? trace.groups[trace.rows[event.row].group].label : "", inGap(ns, trace, group, start, end)],
    target: event,
  }));
  return tablePart(caption, ["Name", "Where", "Time"], cells, { texts: 2 });
}

function inGap(ns, trace, group, start, end) {
  return `${formatDuration(ns)} (${formatPercent(ns / ownLength(trace.groups[group].clock, [start, end]))})`;
}
