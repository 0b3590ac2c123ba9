import { BLOCK, itemsBetween, longestIn } from "./channel.mjs";
import { idleOf, isState, lengthOfTarget, spanOf } from "./targets.mjs";

/**
 * An idle gap: a stretch of recorded time in which a device does nothing, before its first and after
 * its last work, too. `find_gaps` has the same. Of gaps that are merged into one item of a coarse
 * page the longest is known, as {group, gap}; of others it is the item.
 */

/** The idle gaps of all devices in a span, the longest first: targets. */
export function idleGaps(trace, [t0, t1]) {
  const gaps = trace.groups.flatMap((_, group) => {
    const idle = idleOf(trace, group);
    if (!idle) return [];
    const [first, last] = itemsBetween(idle.channel, t0, t1);
    const targets = Array.from({ length: last - first }, (__, i) => gapTarget(idle, group, first + i));
    return targets.filter((target) => target && isInside(trace, target, t0, t1));
  });
  const lengths = new Map(gaps.map((target) => [target, lengthOfTarget(trace, target)]));
  return gaps.sort((a, b) => lengths.get(b) - lengths.get(a));
}

/** The longest idle gap of a device with a part in the span: a target, or null. */
export function idleWithin(trace, group, t0, t1) {
  const idle = idleOf(trace, group);
  if (!idle) return null;
  const { blockMax } = idle.channel;
  const [first, last] = itemsBetween(idle.channel, t0, t1);
  let best = null;
  let longest = 0;
  for (let i = first; i < last; i++) {
    if (i % BLOCK === 0 && blockMax[i / BLOCK] <= longest) {
      i += BLOCK - 1;
      continue;
    }
    const target = gapTarget(idle, group, i);
    const ns = target && isInside(trace, target, t0, t1) ? lengthOfTarget(trace, target) : 0;
    if (ns > longest) [longest, best] = [ns, target];
  }
  return best;
}

export function gapTarget(idle, group, item) {
  const { counts } = idle.channel;
  if (!counts || counts[item] === 1) return { group, channel: idle.number, item };
  const gap = longestIn(idle.channel, item);
  return gap && { group, gap };
}

function isInside(trace, target, t0, t1) {
  const [from, to] = spanOf(trace, target);
  return from < t1 && to > t0;
}

export const isIdleGap = (trace, target) =>
  isState(target) && (Boolean(target.gap) || target.channel === idleOf(trace, target.group)?.number);

/** Whether two idle gaps are the same one. */
export const isSameGap = (trace, one, other) =>
  one.group === other.group && spanOf(trace, one)[0] === spanOf(trace, other)[0];
