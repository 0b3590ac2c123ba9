/**
 * For the exactness test: read an encoded trace, print the occupancy of every channel and the
 * states of every device in some views, and the longest gap of each. Arguments: FILE T0 T1 BINS [T0 T1 BINS …].
 */
import { readFileSync } from "node:fs";
import { decodeTrace } from "../../../traceprof/render/timeline/assets/decode.mjs";
import { deriveStates } from "../../../traceprof/render/timeline/assets/states.mjs";
import { idleWithin } from "../../../traceprof/render/timeline/assets/gaps.mjs";
import { occupancy } from "../../../traceprof/render/timeline/assets/occupancy.mjs";
import { spanOf } from "../../../traceprof/render/timeline/assets/targets.mjs";

const [file, ...views] = process.argv.slice(2);
const trace = decodeTrace(new Uint8Array(readFileSync(file)));
deriveStates(trace);
const channels = trace.rows.flatMap((row) => row.channels);
const columns = (channel) => ({
  category: trace.categories[channel.category].key,
  starts: Array.from(channel.starts),
  ends: Array.from(channel.ends),
  names: channel.names && Array.from(channel.names, (id) => trace.names[id]),
  bytes: channel.bytes && Array.from(channel.bytes),
  correlations: channel.correlations && Array.from(channel.correlations),
});
const measured = [];
for (let i = 0; i < views.length; i += 3) {
  const [t0, t1, bins] = views.slice(i, i + 3).map(Number);
  measured.push(channels.map((channel) => Array.from(occupancy(channel, t0, (t1 - t0) / bins, bins).ratios)));
}
const gaps = trace.groups.map((_, group) => {
  const target = idleWithin(trace, group, 0, trace.duration_ns);
  return target && spanOf(trace, target);
});
const states = trace.groups.map((group) => group.states?.channels.map(columns) ?? null);
process.stdout.write(JSON.stringify({ channels: channels.map(columns), states, gaps, measured }));
