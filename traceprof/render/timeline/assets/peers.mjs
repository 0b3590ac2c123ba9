import { lowerBound } from "./bisect.mjs";

/** The same event on the other ranks: by its number where all have as many, else by time. */

/** [{group, event, isOwn}, …] of each device (or of each process, for events of the host). */
export function peersOf(trace, event) {
  const { kind, group } = trace.rows[event.row];
  const { side } = trace.groups[group];
  const channel = trace.rows[event.row].channels[event.channel];
  const name = channel.names[event.item];
  const start = channel.starts[event.item];
  const own = partyOf(trace, event.row);
  const parties = new Map();
  trace.rows.forEach((row, place) => {
    if (row.kind !== kind || trace.groups[row.group].side !== side) return;
    const party = partyOf(trace, place);
    row.channels.forEach((other, number) => collect(other, name, { row: place, channel: number }, parties, party));
  });
  if (parties.size < 2 || !parties.has(own)) return { peers: [], byNumber: true };
  for (const events of parties.values()) events.sort((a, b) => a.start - b.start);
  const mine = parties.get(own);
  const byNumber = [...parties.values()].every((events) => events.length === mine.length);
  const number = mine.findIndex((e) => e.row === event.row && e.channel === event.channel && e.item === event.item);
  const peers = [...parties].map(([party, events]) => {
    const found = party === own || byNumber ? events[number] : nearest(events, start);
    return { group: trace.rows[found.row].group, event: found, isOwn: party === own };
  });
  return { peers, byNumber };
}

/** Who does something: a device, or a process where the host does it. */
function partyOf(trace, row) {
  const { group } = trace.rows[row];
  const { kind, process } = trace.groups[group];
  return kind === "device" ? `device ${group}` : `process ${process}`;
}

function collect({ starts, names, counts, n }, name, place, parties, party) {
  for (let item = 0; item < n; item++) {
    if (names[item] !== name || (counts && counts[item] > 1)) continue;
    if (!parties.has(party)) parties.set(party, []);
    parties.get(party).push({ ...place, item, start: starts[item] });
  }
}

function nearest(events, start) {
  const starts = Float64Array.from(events, (event) => event.start);
  const after = lowerBound(starts, start);
  const [left, right] = [events[after - 1], events[after]];
  if (!left || !right) return left ?? right;
  return start - left.start <= right.start - start ? left : right;
}
