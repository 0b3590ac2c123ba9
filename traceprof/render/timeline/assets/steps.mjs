import { makeChannel } from "./channel.mjs";

/** The steps as a lane of their own above all others, so that each can be seen, found and chosen. */

export function addSteps(trace) {
  const { starts, ends, labels } = trace.steps;
  if (!starts.length) return trace;
  trace.firstStepName ??= appendNames(trace.names, labels);
  const channel = makeChannel({
    category: trace.categories.findIndex(({ key }) => key === "range"),
    starts: Float64Array.from(starts),
    ends: Float64Array.from(ends, (end, i) => Math.min(end, starts[i + 1] ?? end)),
    names: Uint32Array.from(starts, (_, i) => trace.firstStepName + i),
  });
  const label = `${labels[0].startsWith("iteration") ? "Iterations" : "Steps"} (${starts.length})`;
  trace.rows.push({ label, kind: "step", group: trace.groups.length, channels: [channel] });
  trace.groups.push({ section: "", label, kind: "steps", process: null, rows: [trace.rows.length - 1], states: null });
  return trace;
}

function appendNames(names, labels) {
  const first = names.length;
  for (const label of labels) names.push(label);
  return first;
}

export const stepsRow = (trace) => (trace.groups.at(-1)?.kind === "steps" ? trace.groups.at(-1).rows[0] : null);
