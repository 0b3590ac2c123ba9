import { BLOCK, itemsBetween, longestIn } from "./channel.mjs";
import { occupancyByCategory } from "./occupancy.mjs";
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

const SHARE_BINS = 512;
const LISTED_GAPS = 200;

/**
 * The idle gap of a device in which the others work for the longest: a target. Null where there is
 * none, or fewer than three devices.
 */
export function ownGap(trace, group, t0, t1, shared = sharedIdle(trace, t0, t1)) {
  const idle = idleOf(trace, group);
  if (!idle || !shared) return null;
  const [first, last] = itemsBetween(idle.channel, t0, t1);
  const targets = Array.from({ length: last - first }, (_, i) => gapTarget(idle, group, first + i)).filter(Boolean);
  const longest = targets.sort((a, b) => lengthOfTarget(trace, b) - lengthOfTarget(trace, a)).slice(0, LISTED_GAPS);
  let best = null;
  let most = shared.binNs;
  for (const target of longest) {
    const ns = workOfOthers(spanOf(trace, target), t0, shared);
    if (ns > most) [best, most] = [target, ns];
  }
  return best;
}

/** For how long, of a gap of one device, most of the others are not idle. */
function workOfOthers([start, end], t0, { n, binNs, ratios }) {
  const [from, to] = [Math.max(start, t0), Math.min(end, t0 + ratios.length * binNs)];
  let ns = 0;
  for (let k = Math.floor((from - t0) / binNs); k < ratios.length && t0 + k * binNs < to; k++) {
    const inside = Math.min(to, t0 + (k + 1) * binNs) - Math.max(from, t0 + k * binNs);
    // The sum over all devices has this one in it, as far as its gap reaches.
    const others = (n * ratios[k] - inside / binNs) / (n - 1);
    if (others < 0.5) ns += inside;
  }
  return ns;
}

/** How much of each bin of a span the devices idle on the mean: {n, binNs, ratios}; null of one or two. */
export function sharedIdle(trace, t0, t1) {
  const channels = trace.groups.flatMap((_, group) => idleOf(trace, group)?.channel ?? []);
  if (channels.length < 3 || t1 <= t0) return null;
  const binNs = (t1 - t0) / SHARE_BINS;
  const [sums] = occupancyByCategory(channels, t0, binNs, SHARE_BINS).values();
  return { n: channels.length, binNs, ratios: sums.map((sum) => sum / channels.length) };
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
