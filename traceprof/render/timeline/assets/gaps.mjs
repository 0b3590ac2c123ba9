import { idleOf, isState } from "./targets.mjs";
import { itemsBetween, lengthOf } from "./channel.mjs";

/** The idle gaps of all devices in a span, the longest first: targets. */
export function idleGaps(trace, [t0, t1]) {
  const gaps = trace.groups.flatMap((_, group) => {
    const idle = idleOf(trace, group);
    if (!idle) return [];
    const { starts, ends, counts } = idle.channel;
    const [first, last] = itemsBetween(idle.channel, t0, t1);
    const isWhole = (i) => starts[i] > 0 && ends[i] < trace.duration_ns && !(counts && counts[i] > 1);
    const items = Array.from({ length: last - first }, (__, i) => first + i).filter(isWhole);
    return items.map((item) => ({ group, channel: idle.number, item, ns: lengthOf(idle.channel, item) }));
  });
  return gaps.sort((a, b) => b.ns - a.ns).map(({ group, channel, item }) => ({ group, channel, item }));
}

export const isIdleGap = (trace, target) => isState(target) && target.channel === idleOf(trace, target.group)?.number;
