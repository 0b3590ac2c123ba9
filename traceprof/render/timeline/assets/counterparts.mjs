import { fact, factsPart, notePart } from "./contents.mjs";
import { formatDuration, formatExact } from "./format.mjs";
import { gained } from "./beside.mjs";
import { lengthOfTarget, spanOf } from "./targets.mjs";
import { lowerBound, upperBound } from "./bisect.mjs";

/** The same event of the other recording: where it is, and how much later and longer. */

/** The part of the axis around an instant that belongs to one step. */
export function slotAround(trace, t) {
  const { starts, ends } = trace.steps;
  const slot = upperBound(starts, t) - 1;
  if (slot < 0) return [-Infinity, starts[0] ?? Infinity];
  return t < ends[slot] ? [starts[slot], ends[slot]] : [ends[slot], starts[slot + 1] ?? Infinity];
}

/** The event of the other recording that is the same one: {event, isByNumber}, or null. */
export function counterpartOf(trace, event) {
  const { group, channels } = trace.rows[event.row];
  const { partner } = trace.groups[group];
  if (!(partner >= 0)) return null;
  const [start] = spanOf(trace, event);
  const slot = slotAround(trace, start);
  const name = channels[event.channel].names[event.item];
  let isAlike = (other) => other === name;
  let theirs = eventsInSlot(trace, partner, event, slot, isAlike);
  if (!theirs.length) {
    isAlike = (other) => trace.alikes[other] === trace.alikes[name];
    theirs = eventsInSlot(trace, partner, event, slot, isAlike);
  }
  if (!theirs.length) return null;
  const mine = eventsInSlot(trace, group, event, slot, isAlike);
  const number = mine.findIndex((own) => own.row === event.row && own.channel === event.channel && own.item === event.item);
  const isByNumber = mine.length === theirs.length && number >= 0;
  const away = (other) => Math.abs(other.start - start);
  const found = isByNumber ? theirs[number] : theirs.reduce((best, other) => (away(other) < away(best) ? other : best));
  return { event: { row: found.row, channel: found.channel, item: found.item }, isByNumber, start: found.start - start };
}

function eventsInSlot(trace, group, like, [from, to], isAlike) {
  const { kind } = trace.rows[like.row];
  const found = [];
  for (const row of trace.groups[group].rows) {
    if (trace.rows[row].kind !== kind) continue;
    trace.rows[row].channels.forEach(({ starts, names, counts, n }, channel) => {
      const last = lowerBound(starts, to, 0, n);
      for (let item = lowerBound(starts, from, 0, n); item < last; item++) {
        if (!(counts && counts[item] > 1) && isAlike(names[item])) found.push({ row, channel, item, start: starts[item] });
      }
    });
  }
  return found.sort((a, b) => a.start - b.start);
}

/** The same event in the other recording, with how much later and longer it is. */
export function counterpartParts(trace, event) {
  const { group } = trace.rows[event.row];
  if (trace.groups[group].side === undefined) return [];
  const other = trace.beside.sides[1 - trace.groups[group].side].name;
  const found = counterpartOf(trace, event);
  if (!found) return [notePart(`${other} has no event with this name in this step.`)];
  const [own, theirs] = [event, found.event].map((target) => lengthOfTarget(trace, target));
  const away = `${formatDuration(Math.abs(found.start))} ${found.start > 0 ? "later" : "earlier"}`;
  const later = found.start === 0 ? "at the same time" : away;
  const how = found.isByNumber ? "matched by number in the step" : "nearest in the step, because the numbers of events differ";
  return [
    factsPart(`Same event in ${other} (${how})`, [
      fact(other, trace.names[trace.rows[found.event.row].channels[found.event.channel].names[found.event.item]], found.event),
      fact("start in the step", later),
      fact("duration there", formatExact(theirs)),
      fact("compared with here", gained(own, theirs)),
    ]),
  ];
}
