import { formatBytes, formatCount, formatExact, formatPercent, formatRate } from "./format.mjs";
import { describeEvent, enclosingRanges, findPartner } from "./query.mjs";

/** What a hover and the details say of an event: [label, text] pairs. */
export function eventFacts(trace, event) {
  const found = describeEvent(trace, event);
  const duration = found.end - found.start;
  const { clock } = trace.groups[trace.rows[event.row].group];
  const facts = [
    ["kind", trace.categories[found.category].label],
    ["start", formatExact(found.start + (clock ?? trace).offset_ns)],
    [found.count > 1 ? "span" : "duration", formatExact(duration)],
  ];
  if (found.count > 1 && duration > 0) facts.push(["busy", formatPercent(found.busy / duration)]);
  if (found.bytes !== null) {
    facts.push(["bytes", `${formatBytes(found.bytes)} (${formatCount(found.bytes)})`]);
    if (found.kind === "gpu" && found.busy > 0) facts.push(["rate", formatRate(found.bytes, found.busy)]);
  }
  return { name: found.name, facts };
}

/** The launch or what was launched, and the ranges around the launch. */
export function linkFacts(trace, event) {
  const partner = findPartner(trace, event);
  const facts = [];
  if (partner) {
    const own = describeEvent(trace, event);
    const other = describeEvent(trace, partner);
    const isDevice = own.kind === "gpu";
    facts.push([isDevice ? "launched by" : "launches", other.name]);
    const delay = isDevice ? own.start - other.start : other.start - own.start;
    facts.push(["launch → start", formatExact(delay)]);
  }
  const ranges = enclosingRanges(trace, event, partner);
  if (ranges.length) facts.push(["in range", ranges.join(" › ")]);
  return { partner, facts };
}
