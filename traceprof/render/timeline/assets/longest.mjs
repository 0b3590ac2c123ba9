import { BLOCK, itemsBetween, lengthOf } from "./channel.mjs";

/**
 * The events worth a box of their own: at least `minNs` long, with a part in [t0, t1), and of
 * those the `limit` longest. Returns Map(row → [[channel, item], …]).
 */
export function findLongest(rows, visible, { t0, t1, minNs, limit }) {
  const found = { row: [], channel: [], item: [], duration: [] };
  for (const row of visible) {
    rows[row].channels.forEach((channel, place) => scan(channel, place, row, { t0, t1, minNs }, found));
  }
  const threshold = limitThreshold(found.duration, limit);
  const byRow = new Map();
  let kept = 0;
  for (let i = 0; i < found.row.length && kept < limit; i++) {
    if (found.duration[i] < threshold) continue;
    kept++;
    if (!byRow.has(found.row[i])) byRow.set(found.row[i], []);
    byRow.get(found.row[i]).push([found.channel[i], found.item[i]]);
  }
  return { byRow, count: kept };
}

function scan(channel, place, row, { t0, t1, minNs }, found) {
  const { blockMax, counts } = channel;
  const [first, last] = itemsBetween(channel, t0, t1);
  for (let i = first; i < last; ) {
    const block = Math.floor(i / BLOCK);
    const end = Math.min((block + 1) * BLOCK, last);
    if (blockMax[block] < minNs) {
      i = end;
      continue;
    }
    for (; i < end; i++) {
      const duration = lengthOf(channel, i);
      if (duration < minNs || (counts && counts[i] > 1)) continue;
      found.row.push(row);
      found.channel.push(place);
      found.item.push(i);
      found.duration.push(duration);
    }
  }
}

function limitThreshold(durations, limit) {
  if (durations.length <= limit) return 0;
  return Float64Array.from(durations).sort()[durations.length - limit];
}
