import { upperBound } from "./bisect.mjs";

/** By what a selection is put together: the key of each event, as text. */

export const GROUPINGS = [
  ["name", "Name"],
  ["range", "Launching range"],
  ["thread", "Thread"],
  ["stream", "Lane"],
];

export const LAUNCH_UNKNOWN = "unknown launch";
export const IN_NO_RANGE = "outside any range";

/** A function (row, channel, item) → text; what it needs is prepared once. */
export function keyFunction(trace, grouping) {
  if (grouping === "stream") return (row) => laneKey(trace, row);
  if (grouping === "thread") return threadKey(trace);
  if (grouping === "range") return rangeKey(trace);
  return alikeKey(trace);
}

/** What an event has in its name in common with others. */
export const alikeKey = (trace) => (row, channel, item) => trace.alikes[trace.rows[row].channels[channel].names[item]];

function laneKey(trace, row) {
  const { group, label } = trace.rows[row];
  return `${trace.groups[group].label.split(" · ")[0]} · ${label}`;
}

function threadKey(trace) {
  const hostOf = launchFinder(trace);
  return (row, channel, item) => {
    const host = hostOf(row, channel, item);
    return host ? trace.groups[trace.rows[host.row].group].label : LAUNCH_UNKNOWN;
  };
}

function rangeKey(trace) {
  const hostOf = launchFinder(trace);
  return (row, channel, item) => {
    const host = hostOf(row, channel, item);
    if (!host) return LAUNCH_UNKNOWN;
    return innermostRange(trace, trace.rows[host.row].group, host) ?? IN_NO_RANGE;
  };
}

/** Where on the host an event comes from: its launch; an event of the host is its own. */
function launchFinder(trace) {
  const byProcess = new Map();
  trace.rows.forEach(({ kind, group, channels }, row) => {
    if (kind !== "api") return;
    const { process } = trace.groups[group];
    if (!byProcess.has(process)) byProcess.set(process, new Map());
    const launches = byProcess.get(process);
    channels.forEach(({ correlations, counts, starts, n }) => {
      for (let i = 0; correlations && i < n; i++) {
        if (correlations[i] >= 0 && !(counts && counts[i] > 1)) launches.set(correlations[i], { row, start: starts[i] });
      }
    });
  });
  return (row, channel, item) => {
    const { kind, group, channels } = trace.rows[row];
    const { starts, correlations } = channels[channel];
    if (kind !== "gpu") return { row, start: starts[item], own: row };
    return correlations ? (byProcess.get(trace.groups[group].process)?.get(correlations[item]) ?? null) : null;
  };
}

/** The name of the deepest range around an instant on a thread; an event is not around itself. */
function innermostRange(trace, group, { start: t, own }) {
  let found = null;
  for (const row of trace.groups[group].rows) {
    if (trace.rows[row].kind !== "range" || row === own) continue;
    for (const { starts, ends, counts, names, n } of trace.rows[row].channels) {
      const item = upperBound(starts, t, 0, n) - 1;
      if (item < 0 || t >= ends[item] || (counts && counts[item] > 1)) continue;
      if (!found || starts[item] >= found.start) found = { start: starts[item], name: trace.alikes[names[item]] };
    }
  }
  return found?.name;
}
