import { deviceName, titleOf } from "./describe_event.mjs";
import { formatCount, formatDuration } from "./format.mjs";
import { lengthOfTarget, spanOf } from "./targets.mjs";
import { itemsBetween } from "./channel.mjs";
import { tablePart } from "./contents.mjs";

/** What a range, an operator or a call launched on the devices, whenever it ran: by correlation. */

const LAUNCHING = new Set(["range", "host_op", "api"]);
const MOST_LISTED = 40;

/** The events of devices that a thread launched while an event of it lasted, in the order of time. */
export function launchedBy(trace, event) {
  const { kind, group } = trace.rows[event.row];
  if (!LAUNCHING.has(kind)) return [];
  const [from, to] = spanOf(trace, event);
  const wanted = correlationsOf(trace, group, from, Math.max(to, from + 1));
  if (!wanted.size) return [];
  const { process } = trace.groups[group];
  const found = [];
  trace.rows.forEach((own, row) => {
    if (own.kind !== "gpu" || trace.groups[own.group].process !== process) return;
    own.channels.forEach(({ correlations, counts, n, starts }, channel) => {
      for (let item = 0; correlations && item < n; item++) {
        const isMeant = wanted.has(correlations[item]) && !(counts && counts[item] > 1);
        if (isMeant) found.push({ row, channel, item, start: starts[item] });
      }
    });
  });
  return found.sort((a, b) => a.start - b.start).map(({ row, channel, item }) => ({ row, channel, item }));
}

function correlationsOf(trace, group, from, to) {
  const wanted = new Set();
  for (const row of trace.groups[group].rows.filter((place) => trace.rows[place].kind === "api")) {
    for (const channel of trace.rows[row].channels) {
      const [first, last] = itemsBetween(channel, from, to);
      for (let item = first; item < last; item++) {
        const isInside = channel.starts[item] >= from && !(channel.counts && channel.counts[item] > 1);
        if (isInside && channel.correlations?.[item] >= 0) wanted.add(channel.correlations[item]);
      }
    }
  }
  return wanted;
}

/** The table of it: where each began after `event` began, and how long it took. */
export function launchedParts(trace, event) {
  const found = launchedBy(trace, event);
  if (!found.length || (trace.rows[event.row].kind === "api" && found.length < 2)) return [];
  const [begin] = spanOf(trace, event);
  const total = found.reduce((sum, target) => sum + lengthOfTarget(trace, target), 0);
  const sinceBegin = (target) => `+${formatDuration(spanOf(trace, target)[0] - begin)}`;
  const rows = found.slice(0, MOST_LISTED).map((target) => ({
    cells: [titleOf(trace, target), sinceBegin(target), formatDuration(lengthOfTarget(trace, target))],
    titles: [deviceName(trace, trace.rows[target.row].group)],
    target,
  }));
  const of = found.length > MOST_LISTED ? `; the first ${MOST_LISTED}` : "";
  const sum = `${formatCount(found.length)} on the GPU, ${formatDuration(total)} in total`;
  const caption = `Launched by ${titleOf(trace, event)}: ${sum}${of}`;
  return [tablePart(caption, ["Name", "Start", "Duration"], rows)];
}
