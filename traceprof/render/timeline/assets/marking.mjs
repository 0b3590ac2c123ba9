import { groupOf, idleOf, spanOf } from "./targets.mjs";
import { gapTarget } from "./gaps.mjs";
import { lowerBound, upperBound } from "./bisect.mjs";

/** What the span of a finding is: an idle gap, an event, or just a span; and whose it is. */

const SLACK_NS = 1;

/** The groups that a link names by rank or device, and the main thread of each of their processes. */
export function groupsOfLink(trace, { ranks, devices, sides = [] }) {
  const isNamed = ({ process, device, side }) => {
    const rank = trace.processes?.[process]?.rank;
    const isOfSide = !sides.length || sides.includes(side);
    return isOfSide && (ranks.includes(rank) || (devices.includes(device) && device >= 0));
  };
  const named = trace.groups.flatMap((group, place) => (isNamed(group) ? [place] : []));
  return new Set(named.filter((place) => trace.groups[place].kind === "device" || isMainThread(trace, place)));
}

/** The threads of a process come with the most telling one first. */
export function isMainThread(trace, place) {
  const { kind, process } = trace.groups[place];
  return kind === "thread" && trace.groups.findIndex((group) => group.kind === "thread" && group.process === process) === place;
}

/** The idle gap or event with the span of the mark, or the idle gap around it: a target, or null. */
export function targetOfMark(trace, link) {
  const named = groupsOfLink(trace, link);
  const isOfSide = (group) => !link.sides?.length || link.sides.includes(trace.groups[group].side);
  const isConcerned = (group) => (named.size ? named.has(group) : isOfSide(group));
  const places = trace.groups.flatMap((_, place) => (isConcerned(place) ? [place] : []));
  return idleOfMark(trace, places, link.mark) ?? eventOfMark(trace, isConcerned, link.mark);
}

function idleOfMark(trace, places, [from, to]) {
  const around = [];
  for (const group of places) {
    const idle = idleOf(trace, group);
    if (!idle) continue;
    const item = upperBound(idle.channel.starts, from + SLACK_NS, 0, idle.channel.n) - 1;
    const target = item < 0 ? null : gapTarget(idle, group, item);
    if (!target) continue;
    const [start, end] = spanOf(trace, target);
    if (start <= from + SLACK_NS && end >= to - SLACK_NS) around.push({ target, spare: end - start - (to - from) });
  }
  around.sort((a, b) => a.spare - b.spare);
  return around[0]?.target ?? null;
}

function eventOfMark(trace, isConcerned, [from, to]) {
  for (let row = 0; row < trace.rows.length; row++) {
    if (!isConcerned(groupOf(trace, { row }))) continue;
    const { channels } = trace.rows[row];
    for (let channel = 0; channel < channels.length; channel++) {
      const { starts, ends, counts, n } = channels[channel];
      const item = lowerBound(starts, from - SLACK_NS, 0, n);
      if (item >= n || Math.abs(starts[item] - from) > SLACK_NS || (counts && counts[item] > 1)) continue;
      if (Math.abs(ends[item] - to) <= SLACK_NS) return { row, channel, item };
    }
  }
  return null;
}
