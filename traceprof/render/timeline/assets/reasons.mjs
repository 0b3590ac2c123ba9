import { formatDuration } from "./format.mjs";
import { notePart, tablePart } from "./contents.mjs";
import { idleWithin } from "./gaps.mjs";
import { lengthOfTarget } from "./targets.mjs";
import { lowerBound } from "./bisect.mjs";

/** Why a step took longer than the typical one, as `traceprof explain` has it; a row leads to its place. */
export function reasonParts(trace, { item }) {
  const label = trace.steps.labels[item];
  const found = trace.steps.reasons?.[label];
  if (!found) {
    const how = `traceprof explain TRACE ${label.replace("iteration", "pattern").replace(" ", ":")}`;
    return trace.beside ? [] : [notePart(`To compare this step with the typical step: ${how}`)];
  }
  const { starts, ends } = trace.steps;
  const span = [starts[item], Math.min(ends[item], starts[item + 1] ?? Infinity)];
  const rows = found.causes.map((cause) => ({
    cells: [cause.words, `${cause.ns < 0 ? "−" : "+"}${formatDuration(Math.abs(cause.ns))}`],
    target: placeOfCause(trace, cause, span),
  }));
  const mean = found.devices > 1 ? `, mean of ${found.devices} GPUs` : "";
  const caption = `Why this step took ${formatDuration(found.difference_ns)} longer than ${found.reference}${mean}`;
  return [tablePart(caption, ["", "Difference"], rows)];
}

/** The longest of the kernel in the step, the longest gap, or what a late rank did for the longest: a target, or null. */
function placeOfCause(trace, { part, kernel, device, rank }, [from, to]) {
  const isOf = ({ process }) => rank < 0 || trace.processes?.[process]?.rank === rank;
  const isMeant = (group) => group.kind === "device" && (device < 0 || group.device === device) && isOf(group);
  const places = trace.groups.flatMap((group, place) => (isMeant(group) ? [place] : []));
  const longest = (targets) => targets.reduce((best, one) => (best && best.ns >= one.ns ? best : one), null)?.target ?? null;
  if (part === "idle" && !kernel && rank < 0) {
    const gaps = places.map((place) => idleWithin(trace, place, from, to)).filter(Boolean);
    return longest(gaps.map((target) => ({ target, ns: lengthOfTarget(trace, target) })));
  }
  const name = trace.names.indexOf(kernel);
  if (name < 0 && rank < 0) return null;
  const events = places.flatMap((place) => trace.groups[place].rows.flatMap((row) => eventsOf(trace, row, name, from, to)));
  return longest(events);
}

function eventsOf(trace, row, name, from, to) {
  return trace.rows[row].channels.flatMap((own, channel) => {
    const found = [];
    for (let item = lowerBound(own.starts, from, 0, own.n); item < own.n && own.starts[item] < to; item++) {
      if ((name >= 0 && own.names[item] !== name) || (own.counts && own.counts[item] > 1)) continue;
      found.push({ target: { row, channel, item }, ns: own.ends[item] - own.starts[item] });
    }
    return found;
  });
}
