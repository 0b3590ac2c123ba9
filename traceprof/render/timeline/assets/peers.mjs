import { lowerBound } from "./bisect.mjs";

/**
 * The same event on the other ranks: by its number where all have as many, else by time. The ranks
 * of a collective leave it together, whenever each of them arrived, so collectives are matched by
 * their ends.
 */

export const MATCHED_BY = {
  number: "matched by number",
  end: "matched by their ends",
  start: "nearest in time, because the numbers of events differ",
};

/** {peers: [{group, event, isOwn}, …], matchedBy}: a peer of each device, or process for host events. */
export function peersOf(trace, event) {
  const { kind, group } = trace.rows[event.row];
  const { side } = trace.groups[group];
  const channel = trace.rows[event.row].channels[event.channel];
  const name = channel.names[event.item];
  const edge = isCollective(trace, event) ? "end" : "start";
  const time = channel[`${edge}s`][event.item];
  const own = partyOf(trace, event.row);
  const parties = new Map();
  trace.rows.forEach((row, place) => {
    if (row.kind !== kind || trace.groups[row.group].side !== side) return;
    const party = partyOf(trace, place);
    row.channels.forEach((other, number) => collect(other, name, { row: place, channel: number }, parties, party));
  });
  if (parties.size < 2 || !parties.has(own)) return { peers: [], matchedBy: "number" };
  for (const events of parties.values()) events.sort((a, b) => a[edge] - b[edge]);
  const mine = parties.get(own);
  const byNumber = [...parties.values()].every((events) => events.length === mine.length);
  const number = mine.findIndex((e) => e.row === event.row && e.channel === event.channel && e.item === event.item);
  const peers = [...parties].map(([party, events]) => {
    const found = party === own || byNumber ? events[number] : nearest(events, edge, time);
    return { group: trace.rows[found.row].group, event: found, isOwn: party === own };
  });
  return { peers, matchedBy: byNumber ? "number" : edge };
}

/** Whether an event is a collective, or the kernel of one. */
export function isCollective(trace, event) {
  const { kind, channels } = trace.rows[event.row];
  return kind === "collective" || trace.categories[channels[event.channel].category].key === "communication";
}

/** Who does something: a device, or a process where the host does it. */
function partyOf(trace, row) {
  const { group } = trace.rows[row];
  const { kind, process } = trace.groups[group];
  return kind === "device" ? `device ${group}` : `process ${process}`;
}

function collect({ starts, ends, names, counts, n }, name, place, parties, party) {
  for (let item = 0; item < n; item++) {
    if (names[item] !== name || (counts && counts[item] > 1)) continue;
    if (!parties.has(party)) parties.set(party, []);
    parties.get(party).push({ ...place, item, start: starts[item], end: ends[item] });
  }
}

function nearest(events, edge, time) {
  const times = Float64Array.from(events, (event) => event[edge]);
  const after = lowerBound(times, time);
  const [left, right] = [events[after - 1], events[after]];
  if (!left || !right) return left ?? right;
  return time - left[edge] <= right[edge] - time ? left : right;
}
