import { makeChannel } from "./channel.mjs";

/**
 * What a device does at each instant, exactly one state. Which it is for each set of unions that
 * are busy together comes with the trace: `part_bits` has the bit of each category,
 * `state_of_parts` the state for each sum of bits.
 */

/** Give every device group of an exact trace its states; when it was not recorded is told. */
export function deriveStates(trace) {
  const { part_bits: bitOf, state_of_parts: lut } = trace;
  for (const group of trace.groups) {
    const known = group.states?.channels ?? [];
    if (group.kind !== "device" || known.some(({ category }) => category !== trace.not_recorded)) continue;
    const all = [...group.rows.flatMap((row) => trace.rows[row].channels), ...known];
    const channels = all.filter((channel) => bitOf[channel.category] > 0);
    const bits = channels.map((channel) => bitOf[channel.category]);
    group.states = { channels: sweep(channels, bits, lut, trace.duration_ns) };
  }
}

/** Walk over all edges in order of time; between two edges the device is in one state. */
function sweep(channels, bits, lut, durationNs) {
  const out = new Map();
  const edges = new EdgeQueue(channels);
  const open = new Array(lut.length).fill(0);
  let busy = 0;
  let time = 0;
  const emit = (until) => {
    const end = Math.min(until, durationNs);
    if (end > time) append(out, lut[busy], time, end);
    time = Math.max(time, end);
  };
  for (let edge = edges.next(); edge; edge = edges.next()) {
    emit(edge.time);
    const bit = bits[edge.channel];
    open[bit] += edge.opens ? 1 : -1;
    busy = open[bit] > 0 ? busy | bit : busy & ~bit;
  }
  emit(durationNs);
  return [...out].map(([category, { starts, ends }]) =>
    makeChannel({ category, starts: Float64Array.from(starts), ends: Float64Array.from(ends) }),
  );
}

function append(out, category, start, end) {
  let lists = out.get(category);
  if (!lists) out.set(category, (lists = { starts: [], ends: [] }));
  const last = lists.ends.length - 1;
  if (last >= 0 && lists.ends[last] === start) lists.ends[last] = end;
  else {
    lists.starts.push(start);
    lists.ends.push(end);
  }
}

/** The starts and ends of all channels, in order of time. */
class EdgeQueue {
  constructor(channels) {
    this.channels = channels;
    this.item = channels.map(() => 0);
    this.inside = channels.map(() => false);
    this.time = Float64Array.from(channels, (c) => (c.n ? c.starts[0] : Infinity));
    this.edge = { time: 0, channel: 0, opens: true };
  }

  next() {
    let best = -1;
    let soonest = Infinity;
    for (let i = 0; i < this.time.length; i++) {
      if (this.time[i] < soonest) {
        soonest = this.time[i];
        best = i;
      }
    }
    if (best < 0) return null;
    const channel = this.channels[best];
    const opens = !this.inside[best];
    this.inside[best] = opens;
    if (opens) this.time[best] = channel.ends[this.item[best]];
    else {
      const item = ++this.item[best];
      this.time[best] = item < channel.n ? channel.starts[item] : Infinity;
    }
    this.edge.time = soonest;
    this.edge.channel = best;
    this.edge.opens = opens;
    return this.edge;
  }
}
