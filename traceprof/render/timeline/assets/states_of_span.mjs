import { busyBefore } from "./channel.mjs";
import { lowerBound } from "./bisect.mjs";
import { ownLength } from "./clock.mjs";

/** What devices do in a span: the time of each state. */

/** Map(category → ns) of one device; together they fill the part of the span inside the trace. */
export function partsOfSpan(trace, group, t0, t1) {
  const found = new Map();
  for (const channel of trace.groups[group].states?.channels ?? []) {
    const before = (t) => busyBefore(channel, lowerBound(channel.starts, t, 0, channel.n), t);
    const ns = before(t1) - before(t0);
    if (ns > 0) found.set(channel.category, (found.get(channel.category) ?? 0) + ns);
  }
  return found;
}

/** How much of the span was recorded of a device: its shares are shares of that. */
export function recordedOfSpan(trace, group, t0, t1) {
  const unknown = partsOfSpan(trace, group, t0, t1).get(trace.not_recorded) ?? 0;
  return ownLength(trace.groups[group].clock, [t0, t1]) - unknown;
}

/** The same as a share of the span. */
export const recordedShare = (trace, group, t0, t1) =>
  recordedOfSpan(trace, group, t0, t1) / ownLength(trace.groups[group].clock, [t0, t1]);

/** Whether something of the span was not recorded of one of the devices. */
export const isPartly = (trace, places, t0, t1) =>
  places.some((place) => partsOfSpan(trace, place, t0, t1).has(trace.not_recorded));

const SHORT = {
  ...{ compute: "Compute", overlap: "Overlap", exposed_communication: "Comm.", exposed_transfer: "Copies" },
  ...{ device_memory: "Memory", idle: "Idle" },
};

/** The states as columns of a narrow table, what is lost first: [{category, title, about}]. */
export function stateColumns(trace) {
  const order = [trace.states.at(-1), ...trace.states.slice(0, -1)];
  return order.map((category) => {
    const { key, label } = trace.categories[category];
    return { category, title: SHORT[key] ?? label, about: label };
  });
}
