import { makeChannel } from "./channel.mjs";
import { upperBound } from "./bisect.mjs";

/**
 * Where two recordings share an axis, each has its own time: pieces of it lie on the axis, and
 * between them the axis goes on for the other one alone. Lengths and sums are of the own time.
 */
export class Clock {
  constructor({ own, axis, lengths }, offsetNs) {
    Object.assign(this, { own, axis, lengths, offset_ns: offsetNs });
  }

  /** The own time at a place on the axis; between two pieces it stands still. */
  ownOf(t) {
    const { own, axis, lengths } = this;
    const piece = Math.max(0, upperBound(axis, t, 0, axis.length) - 1);
    return own[piece] + Math.max(0, Math.min(t - axis[piece], lengths[piece]));
  }

  /** The stretches of [t0, t1) that this recording has no part in. */
  pauses(t0, t1) {
    const { axis, lengths } = this;
    const found = [];
    let from = t0;
    for (let i = Math.max(0, upperBound(axis, t0, 0, axis.length) - 1); i < axis.length && axis[i] < t1; i++) {
      if (axis[i] > from) found.push([from, axis[i]]);
      from = Math.max(from, axis[i] + lengths[i]);
    }
    if (from < t1) found.push([from, t1]);
    return found;
  }
}

/** Give the lanes of each recording its clock; of one recording alone nothing changes. */
export function attachClocks(trace) {
  if (!trace.beside) return trace;
  const { sides, side_of_group: sideOf, partner_of_group: partnerOf } = trace.beside;
  for (const side of sides) side.clock = new Clock(side.clock, side.offset_ns);
  const clocked = (clock) => (channel) => makeChannel({ ...channel, clock });
  trace.groups.forEach((group, place) => {
    const { clock } = sides[sideOf[place]];
    Object.assign(group, { clock, side: sideOf[place], partner: partnerOf[place] });
    if (group.states) group.states.channels = group.states.channels.map(clocked(clock));
    for (const row of group.rows) trace.rows[row].channels = trace.rows[row].channels.map(clocked(clock));
  });
  return trace;
}

export const ownTime = (clock, t) => (clock ? clock.ownOf(t) : t);

export const ownLength = (clock, [from, to]) => ownTime(clock, to) - ownTime(clock, from);

/** An instant of a group as its recording counts it, from its start. */
export function sinceStart(trace, group, t) {
  const { clock } = trace.groups[group];
  return clock ? clock.ownOf(t) + clock.offset_ns : t + trace.offset_ns;
}
